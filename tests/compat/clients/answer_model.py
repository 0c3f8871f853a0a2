"""The classes of a structured output: the schema of cases.py, as pydantic's users write it."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field


class Answer(BaseModel):
    method: Literal["sort", "reverse", "insert"]
    in_place: bool
    sizes: list[Annotated[int, Field(ge=0, le=999)]] = Field(max_length=3)
    note: str = Field(max_length=8)
