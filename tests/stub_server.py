"""A server with OpenAI's API and no model: it takes no processor time, and its options say how it behaves.

``python stub_server.py --port 20007 --step-us 1000 --mode "half a stream"``. Each request gets a token a step; what
goes wrong does so at the fifth request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from typing import Any

METRICS = """\
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{{engine="0"}} {asked}
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{{le="+Inf"}} {asked}
vllm:request_queue_time_seconds_sum {queued}
vllm:request_queue_time_seconds_count {asked}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0"}} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",num_gpu_blocks="10"}} 1.0
"""


def say(line: str) -> None:
    """Write to the log."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def leave_a_child() -> None:
    """Die and leave a process in a session of its own."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    os._exit(4)


class Stub:
    """The server's state: its options, and how many requests it has had."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.asked = 0
        self.born = time.monotonic()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        words = head.split()
        length = next((int(line.split(":")[1]) for line in head.lower().split("\r\n") if "content-length" in line), 0)
        body = json.loads(await reader.readexactly(length)) if length else {}
        if words[1] == "/v1/completions":
            await self.complete(body, writer)
        else:
            self.tell(words[1], writer)
        if writer.can_write_eof():
            writer.close()

    def tell(self, path: str, writer: asyncio.StreamWriter) -> None:
        """All that is no request of the load."""
        never = self.options.mode == "never ready"
        answers: dict[str, Any] = {
            "/v1/models": json.dumps({"data": [{"id": "stub"}]}),
            "/version": json.dumps({"version": "9.9.stub"}),
            "/collective_rpc": json.dumps({"results": ["179000"]}),
            "/metrics": METRICS.format(asked=self.asked, queued=0.004 * self.asked),
            "/health": "",
        }
        status = "503 Service Unavailable" if path == "/health" and never else "200 OK"
        text = answers.get(path, "").encode()
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(text)}\r\n\r\n".encode() + text)

    async def complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """A stream of tokens."""
        self.asked += 1
        mode = self.options.mode if self.asked == 5 else ""
        if self.options.tells == "usage alone" and "return_token_ids" in body:
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 14\r\n\r\nunknown field\n")
            return
        if self.refuses(mode, writer):
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(body["max_tokens"]):
            await asyncio.sleep(self.options.step_us / 1e6)
            if number == 2 and mode == "hangs":
                await asyncio.sleep(600)
            if number == 2 and mode == "half a stream":
                return
            last = number + 1 == body["max_tokens"] - (mode == "short")
            choice = {"index": 0, "text": " w", "token_ids": [number], "finish_reason": "length" if last else None}
            self.send(writer, json.dumps(self.told({"choices": [choice]}, number + 1, body)))
            if last:
                break
        if (body.get("stream_options") or {}).get("include_usage"):
            self.send(writer, json.dumps({"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}))
        self.send(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")

    @staticmethod
    def refuses(mode: str, writer: asyncio.StreamWriter) -> bool:
        """Whether a request gets no stream; where the server dies this does not return."""
        match mode:
            case "dies":
                say("CUDA error: an illegal memory access was encountered")
                os._exit(3)
            case "dies, child stays":
                leave_a_child()
            case "drops a request":
                writer.transport.abort()
            case "500":
                say("ERROR RuntimeError: the scheduler broke")
                writer.write(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 16\r\n\r\nscheduler broke\n")
            case _:
                return False
        return True

    def told(self, event: dict[str, Any], tokens: int, body: dict[str, Any]) -> dict[str, Any]:
        """An event with what this server tells of tokens."""
        if self.options.tells == "ids":
            return event
        del event["choices"][0]["token_ids"]
        asked = (body.get("stream_options") or {}).get("continuous_usage_stats")
        if asked and self.options.tells.startswith("usage"):
            event["usage"] = {"completion_tokens": tokens}
        return event

    @staticmethod
    def send(writer: asyncio.StreamWriter, data: str) -> None:
        """An event as a chunk."""
        event = f"data: {data}\n\n".encode()
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))


async def main() -> None:
    """Listen until somebody ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--step-us", type=int, default=1000)
    parser.add_argument("--mode", default="")
    parser.add_argument("--tells", default="ids")
    parser.add_argument("--no-mode", action="store_true")
    options = parser.parse_args()
    if options.mode == "does not start":
        sys.exit("no memory for the cache blocks")
    server = await asyncio.start_server(Stub(options).serve, "127.0.0.1", options.port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        say("stopped")
