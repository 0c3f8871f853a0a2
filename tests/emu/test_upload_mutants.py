"""Bugs planted in uploads and in memory that operations keep: the emulated runtime notices each."""

import pytest

from tests.emu.planted_bugs import PlantedBugs

pytestmark = pytest.mark.timeout(600)

COPY = 'check(cudaMemcpyAsync(device, data_, bytes, cudaMemcpyDefault, stream), "upload");\n'
RECORD = 'check(cudaEventRecord(sent_, stream), "upload");\n'
WAIT = 'check(cudaEventSynchronize(sent_), "upload");'

# What is wrong: the text that is replaced, and by what.
UPLOAD_MUTANTS = {
    "no wait before the buffer is filled again": (WAIT, ""),
    "no wait before a small buffer goes": ("} else {", "} else if (bytes <= bytes_) {"),
    "no wait before the last buffer goes": ("cudaEventSynchronize(sent_);\n      cuda", "cuda"),
    "a wait that may fail": (WAIT, "cudaEventSynchronize(sent_);"),
    "no event behind the copy": (RECORD, ""),
    "an event before the copy": (f"{COPY}    {RECORD}", f"{RECORD}    {COPY}"),
    "an event of another stream": ("(sent_, stream)", "(sent_, nullptr)"),
    "a copy on another stream": ("cudaMemcpyDefault, stream)", "cudaMemcpyDefault, nullptr)"),
    "a copy of half": ("(device, data_, bytes,", "(device, data_, bytes / 2,"),
    "half the room": ("cudaMallocHost(&data_, 2 * bytes)", "cudaMallocHost(&data_, bytes / 2)"),
    "more room than there is": ("bytes_ = 2 * bytes;", "bytes_ = 4 * bytes;"),
    "a small buffer that is kept": ('check(cudaFreeHost(data_), "upload");', ""),
    "a last buffer that is kept": ("    cudaFreeHost(data_);\n", ""),
    "an allocation that may fail": (
        'check(cudaFreeHost(data_), "upload");\n      data_ = nullptr;\n      bytes_ = 0;\n'
        '      check(cudaMallocHost(&data_, 2 * bytes), "upload");',
        "cudaFreeHost(data_);\n      cudaMallocHost(&data_, 2 * bytes);",
    ),
}

WORKSPACE_MUTANTS = {
    "no wait before the memory goes": ('check(cudaStreamSynchronize(stream), "workspace");', ""),
    "a wait for another stream": (
        "cudaStreamSynchronize(stream)",
        "cudaStreamSynchronize(nullptr)",
    ),
    "memory that is kept where it grows": ('check(cudaFree(data_), "workspace");', ""),
    "memory that is kept at the end": ("~Workspace() { cudaFree(data_); }", "~Workspace() {}"),
    "memory that goes twice": ("    data_ = nullptr;\n    bytes_ = 0;", "    bytes_ = 0;"),
    "room of memory that has gone": ("    bytes_ = 0;\n    bytes +=", "    bytes +="),
    "growth that is forgotten": ("    bytes_ = bytes;\n", ""),
    "growth with room for it": ("if (bytes <= bytes_)", "if (bytes < bytes_)"),
    "growth at each step": ("if (bytes <= bytes_)", "if (false)"),
    "no growth": ("if (bytes <= bytes_)", "if (data_ != nullptr)"),
    "no room for growth": ("bytes += bytes / 2;", ""),
    "half the room": ("cudaMalloc(&data_, bytes)", "cudaMalloc(&data_, bytes / 2)"),
    "pieces behind those of the step before": ("used_ = 0;\n    asked_", "asked_"),
    "pieces of any room": ("if (used_ > asked_)", "if (false)"),
    "pieces of all the room": ("if (used_ > asked_)", "if (used_ > bytes_)"),
    "pieces that overlap": ("used_ += piece_bytes<T>(count);", "used_ += 256;"),
    "pieces that are not aligned": ("(count * sizeof(T) + 255) / 256 * 256", "count * sizeof(T)"),
    "fixed memory that moves": (
        "if (data_ == nullptr) check(cudaMalloc(&data_, kB",
        "check(cudaMalloc(&data_, kB",
    ),
    "half of the fixed memory": ("cudaMalloc(&data_, kBytes)", "cudaMalloc(&data_, kBytes / 2)"),
    "one for all streams": ("of_streams[stream]", "of_streams[nullptr]"),
    "one for each thread": ("static auto& of_streams", "static thread_local auto& of_streams"),
}


class TestUploads(PlantedBugs):
    driver = "upload_driver.cpp"
    kernel = ("upload.h",)
    mutants = UPLOAD_MUTANTS


class TestWorkspace(PlantedBugs):
    driver = "upload_driver.cpp"
    kernel = ("workspace.h",)
    mutants = WORKSPACE_MUTANTS
