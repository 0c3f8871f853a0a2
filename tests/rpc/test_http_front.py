"""Where the HTTP port listens, and under what: a socket, a path, certificates, keys of its own."""

import shutil
import socket
import ssl
from pathlib import Path

import httpx
import pytest

from quire import AsyncClient
from quire.contract.errors import ConfigError, UnauthenticatedError, UnavailableError
from router.config import RouterConfig
from tests.fakes.fake_scheduler import FakeScheduler, running_scheduler
from tests.rpc.http_setup import http_router
from tests.rpc.router_setup import PROMPT, router_for
from tests.rpc.secure_server import make_certificates

PATH = "/v1/completions"
BODY = {"prompt": PROMPT, "max_tokens": 3}


async def posted(path: str, **options: object) -> httpx.Response:
    transport = httpx.AsyncHTTPTransport(uds=path)
    async with httpx.AsyncClient(transport=transport, base_url="http://a", timeout=60.0) as http:
        return await http.post(PATH, json=BODY, **options)


async def test_a_socket_takes_the_place_of_the_port(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    # What a process that was killed has left there is in nobody's way.
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with running_scheduler(FakeScheduler()) as scheduler:
        settings = {"uds": str(path)}
        async with router_for(tmp_path, (scheduler,), **settings) as (router, _, _):
            assert router.http_address == f"unix:{path}"
            assert (await posted(str(path))).status_code == 200
            with pytest.raises(UnavailableError, match="another process listens there"):
                async with router_for(tmp_path, (scheduler,), **settings):
                    pass
            assert (await posted(str(path))).status_code == 200
        path.unlink(missing_ok=True)
        path.write_text("mine")
        with pytest.raises(UnavailableError, match=r"^uds: cannot .* file that is no socket"):
            async with router_for(tmp_path, (scheduler,), **settings):
                pass
        assert path.read_text() == "mine"


async def test_paths_are_taken_with_and_without_the_root(tmp_path: Path) -> None:
    async with http_router(tmp_path, root_path="/llm/") as setup:
        for root in ("", "/llm"):
            assert (await setup.post(f"{root}{PATH}", BODY)).status_code == 200
            missing = await setup.post(f"{root}/v1/messages/none", {})
            assert missing.status_code == 404
            assert missing.json()["type"] == "error", "in Anthropic's shape"
        assert (await setup.post(f"/other{PATH}", BODY)).status_code == 404
        page = (await setup.http.get("/llm/")).text
    assert "/llm/v1/chat/completions" in page
    with pytest.raises(ConfigError, match=r"^root_path: must begin with /, got llm$"):
        RouterConfig(model=str(tmp_path), root_path="llm")


async def test_keys_that_are_given_hold_at_both_ports(tmp_path: Path) -> None:
    async with http_router(tmp_path, api_key=("one", "two")) as setup:
        assert (await setup.post(PATH, BODY)).status_code == 401
        assert (await setup.http.get("/health")).status_code == 200
        for key in ("one", "two"):
            headers = {"authorization": f"Bearer {key}"}
            assert (await setup.post(PATH, BODY, **headers)).status_code == 200
            async with AsyncClient(setup.address, api_key=key) as client:
                assert (await client.generate(PROMPT)).token_ids
        with pytest.raises(UnauthenticatedError):
            await setup.client.generate(PROMPT)


async def test_https_has_certificates_of_its_own_and_follows_them(tmp_path: Path) -> None:
    older, newer = (make_certificates(tmp_path / name).path for name in ("older", "newer"))
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(source: Path) -> None:
        shutil.copy(source / "router" / "tls.crt", certificate)
        shutil.copy(source / "router" / "tls.key", key)

    async def status(authority: Path) -> int:
        context = ssl.create_default_context(cafile=str(authority / "router" / "ca.crt"))
        context.check_hostname = False
        url = f"https://{setup.router.http_address}/version"
        async with httpx.AsyncClient(verify=context, timeout=60.0) as http:
            return (await http.get(url)).status_code

    put(older)
    async with http_router(tmp_path, ssl_certfile=certificate, ssl_keyfile=key) as setup:
        assert await status(older) == 200
        with pytest.raises(httpx.ConnectError):
            await status(newer)
        put(newer)
        assert await status(newer) == 200
        # A change that cannot be used keeps the last one that could.
        certificate.write_text("broken")
        assert await status(newer) == 200
        # gRPC goes by --tls-dir, which is not given.
        assert (await setup.client.generate(PROMPT)).token_ids


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ssl_certfile": "none"}, "ssl_certfile: must be a file that exists, got "),
        ({"ssl_keyfile": "broken"}, "ssl_certfile: must be given with ssl_keyfile, got none"),
        (
            {"ssl_certfile": "broken", "ssl_cert_reqs": 2},
            "ssl_ca_certs: must be given with ssl_cert_reqs, got none",
        ),
        ({"api_key": ("",)}, "api_key: must not be empty, got ''"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    (tmp_path / "broken").write_text("no certificate")
    options = {
        name: tmp_path / str(value) if str(value) in ("none", "broken") else value
        for name, value in changes.items()
    }
    with pytest.raises(ConfigError, match=f"^{message}"):
        RouterConfig(model=str(tmp_path), **options)  # type: ignore[arg-type]


async def test_a_broken_certificate_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("no certificate")
    with pytest.raises(ConfigError, match="ssl_certfile: must be a certificate in PEM"):
        async with router_for(
            tmp_path, ("127.0.0.1:1",), http_port=0, ssl_certfile=tmp_path / "broken"
        ):
            pass


async def test_tokens_are_named_by_ids_and_usage_comes_unasked(tmp_path: Path) -> None:
    settings = {"return_tokens_as_token_ids": True, "enable_force_include_usage": True}
    async with http_router(tmp_path, **settings) as setup:
        events = await setup.events(PATH, {**BODY, "logprobs": 1})
    shown = [
        name
        for each in events[:-2]
        if (found := each.choice["logprobs"])
        for name in found["tokens"]
    ]
    assert shown and all(name.startswith("token_id:") for name in shown)
    assert events[-2].data["usage"]["completion_tokens"] == 3


async def test_tokens_of_a_chat_are_named_by_ids(tmp_path: Path) -> None:
    body = {
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 3,
        "logprobs": True,
        "top_logprobs": 2,
        "return_tokens_as_token_ids": True,
    }
    async with http_router(tmp_path, chat_template="{{ messages[0].content }}") as setup:
        answer = (await setup.post("/v1/chat/completions", body)).json()
    content = answer["choices"][0]["logprobs"]["content"]
    shown = [each["token"] for token in content for each in (token, *token["top_logprobs"])]
    assert shown and all(name.startswith("token_id:") for name in shown)
