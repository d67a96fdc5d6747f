"""ONNX files under the OpenVINO execution provider, in the environment that has it; answers on a pipe.

Requests: ("load", name, path), ("run", name, array) and ("time", array, rounds, warmup, names).
"""

import sys
import time
from multiprocessing.connection import Connection

import onnxruntime as ort

THREADS = "2"
PROVIDER = ("OpenVINOExecutionProvider", {"device_type": "CPU", "num_of_threads": THREADS})


def _load(path: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    # Its own graph rewrites would take Q/DQ apart before OpenVINO sees them.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=[PROVIDER])
    if session.get_providers()[0] != PROVIDER[0]:
        raise RuntimeError(f"OpenVINO does not load here; providers: {session.get_providers()}")
    return session


def _time(sessions: dict, names: list, array, rounds: int, warmup: int) -> dict:
    feeds = {name: {sessions[name].get_inputs()[0].name: array} for name in names}
    taken: dict = {name: [] for name in names}
    for turn in range(warmup + rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            # Once more than is timed: threads of the session that ran before still hold cores then, and what runs beside them
            # takes 21 or 57 ms by chance (CGNet).
            sessions[name].run(None, feeds[name])
            start = time.perf_counter()
            sessions[name].run(None, feeds[name])
            if turn >= warmup:
                taken[name].append((time.perf_counter() - start) * 1e3)
    return taken


def serve(requests: Connection, answers: Connection) -> None:
    """Answer until the other end closes; an exception is an answer too."""
    sessions: dict = {}
    while True:
        try:
            what, *rest = requests.recv()
        except EOFError:
            return
        try:
            if what == "load":
                sessions[rest[0]] = _load(rest[1])
                answer = [value.name for value in sessions[rest[0]].get_outputs()]
            elif what == "run":
                session = sessions[rest[0]]
                answer = session.run(None, {session.get_inputs()[0].name: rest[1]})
            else:
                array, rounds, warmup, names = rest
                answer = _time(sessions, names, array, rounds, warmup)
        except Exception as error:
            answer = error if type(error).__module__ == "builtins" else RuntimeError(str(error))
        answers.send(answer)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1]), writable=False), Connection(int(sys.argv[2]), readable=False))
