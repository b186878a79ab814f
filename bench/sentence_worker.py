"""Encodes batches with sentence-transformers, in the environment of that peer. `embeddings.py` starts it.

    .bench/envs/sentence-transformers/bin/python bench/sentence_worker.py FOLDER

Each line of standard input is a JSON array of texts. Each line of standard output is a JSON object with the seconds that
`encode` took and the vectors, as base64 of little-endian float32.
"""

import argparse
import base64
import json
import sys
import time

from sentence_transformers import SentenceTransformer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    model = SentenceTransformer(parser.parse_args().folder, device="cpu", local_files_only=True)
    print("ready", flush=True)
    for line in sys.stdin:
        texts = json.loads(line)
        started = time.perf_counter()
        vectors = model.encode(texts, show_progress_bar=False)
        seconds = time.perf_counter() - started
        encoded = [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in vectors]
        print(json.dumps({"seconds": seconds, "vectors": encoded}), flush=True)


if __name__ == "__main__":
    main()
