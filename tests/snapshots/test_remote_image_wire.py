"""Requests with pictures to engines on other servers, as text in `/snapshots/remote_images`."""

import json

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from antiphon.engine.remote.backend_apis.base import JobTarget
from antiphon.engine.remote.images.pictures import RemotePicture
from tests.engine.remote.image_spans import APIS, KEY, MARKER, OTHER_KEY, TOKENS, spans
from tests.engine.remote.remote_helpers import EOS, make_job
from tests.snapshots.snapshot_files import REMOTE_IMAGE_SNAPSHOT_FOLDER, RemoteImageSnapshot


@pytest.mark.filterwarnings(r"ignore:\s*Can not relate snapshot name")  # the files are named after kinds of engines
@pytest.mark.parametrize("kind", APIS)
def test_wire(kind: str, snapshot: SnapshotAssertion) -> None:
    pictures = (RemotePicture(b"\x89PNG1", "a" * 64), RemotePicture(b"\x89PNG2", "b" * 64))
    texts = ("Look: ", " and ", "?") if kind == "llama.cpp" else ()
    job = make_job("job", tokens=TOKENS, media=spans(KEY, OTHER_KEY), texts=texts, owner="me", seed=7)
    target = JobTarget(
        model="tiny", max_tokens=16, stop_ids=(EOS,), cache_salt="c2FsdA==", pictures=pictures, media_marker=MARKER
    )
    wire = json.loads(APIS[kind].encode_job(job, target))
    lines = [f"POST {APIS[kind].path}", json.dumps(wire, indent=2, ensure_ascii=False)]
    assert "\n".join(lines) + "\n" == snapshot.use_extension(RemoteImageSnapshot)(name=kind)
    plain = json.loads(APIS[kind].encode_job(job, msgspec.structs.replace(target, pictures=())))
    assert not {"content_parts", "return_token_ids", "image_data", "mm_hashes"} & plain.keys()
    assert plain.get("prompt", list(TOKENS)) == list(TOKENS), "a job without pictures is sent as before"


def test_every_wire_has_one_file() -> None:
    assert {path.stem for path in REMOTE_IMAGE_SNAPSHOT_FOLDER.glob("*.txt")} == set(APIS)
