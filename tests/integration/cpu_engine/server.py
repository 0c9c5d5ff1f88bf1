"""A small server with an OpenAI-compatible API around a GGUF model, on the standard library and llama-cpp-python.

python3 -m cpu_engine.server --model FOLDER_OR_FILE --port PORT
"""

import argparse
import glob
import json
import os
import queue
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTEXT = 8192
BATCH = 512
COPIES = 2


def prompt_batch():
    """How many tokens of a prompt are evaluated at once."""
    return BATCH


class Engine:
    """The model, twice over the same mapped weights; each copy answers one request at a time.

    Two copies with a thread each, since threads of one model wait for each other, and lose most of their time to that on a
    machine that does other things as well.
    """

    def __init__(self, place):
        from llama_cpp import Llama

        files = [place] if os.path.isfile(place) else sorted(glob.glob(os.path.join(place, "*.gguf")))
        self.name = os.path.basename(files[0])
        self.lock = threading.Lock()
        self.completions = 0
        self.tokens = 0
        self.free = queue.Queue()
        batch = prompt_batch()
        for _ in range(COPIES):
            self.free.put(Llama(files[0], n_ctx=2048, n_batch=batch, n_threads=1, n_threads_batch=1, verbose=False))

    def complete(self, prompt, asked):
        model = self.free.get()
        try:
            # what is kept of the prompt of before would move the borders of the batches, and with them the last digits
            model.reset()
            found = model.create_completion(
                prompt,
                max_tokens=int(asked.get("max_tokens") or 16),
                temperature=float(asked.get("temperature") or 0.0),
                top_p=float(asked.get("top_p") or 1.0),
                stop=asked.get("stop") or [],
            )
        finally:
            self.free.put(model)
        with self.lock:
            self.completions += 1
            self.tokens += found["usage"]["completion_tokens"]
        choice = found["choices"][0]
        return {
            "id": found["id"],
            "object": "text_completion",
            "created": int(time.time()),
            "model": asked.get("model"),
            "choices": [{"index": 0, "text": choice["text"], "finish_reason": choice["finish_reason"]}],
            "usage": found["usage"],
        }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine = None
    served = None

    def do_GET(self):
        if self.path == "/health":
            self.say(200, {})
        elif self.path == "/v1/models":
            self.say(
                200, {"object": "list", "data": [{"id": self.served, "object": "model", "max_model_len": CONTEXT}]}
            )
        elif self.path == "/version":
            self.say(200, {"version": "cpu-engine 1.0"})
        elif self.path == "/metrics":
            lines = (
                f"cpu_engine:completions_total {self.engine.completions}",
                f"cpu_engine:tokens_total {self.engine.tokens}",
            )
            self.send(200, "\n".join((*lines, "")).encode(), "text/plain")
        else:
            self.say(404, {"error": {"message": "not found"}})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked.get("model") != self.served:
            self.say(404, {"error": {"message": f"The model {asked.get('model')} does not exist."}})
            return
        prompt = asked["prompt"][0] if isinstance(asked["prompt"], list) else asked["prompt"]
        self.say(200, self.engine.complete(prompt, asked))

    def say(self, status, document):
        self.send(status, json.dumps(document).encode(), "application/json")

    def send(self, status, data, kind):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, form, *words):
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    words = parser.parse_args()
    Handler.engine, Handler.served = Engine(words.model), words.name
    print(f"cpu engine serves {Handler.engine.name} on port {words.port}", flush=True)
    ThreadingHTTPServer((words.host, words.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
