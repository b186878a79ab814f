"""The environment of the worker process."""

from antiphon.engine.process.spawn import worker_environment

SECRETS = {
    "ANTIPHON_API_KEY": "sk-one",
    "ANTIPHON_ENCRYPTION_KEY_FILE": "/key",
    "HF_TOKEN": "hf_x",
    "OPENAI_API_KEY": "sk-two",
    "AWS_SECRET_ACCESS_KEY": "x",
    "PGPASSWORD_FILE_PASSWORD": "x",
    "DB_PASSWD": "x",
    "HTTPS_PROXY": "http://user:pass@proxy:3128",
    "SENTRY_DSN": "https://x@sentry",
}
NEEDED = {
    "PATH": "/bin",
    "CUDA_VISIBLE_DEVICES": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TIKTOKEN_ENCODINGS_BASE": "/folder",
    "OMP_NUM_THREADS": "2",
    "XDG_CACHE_HOME": "/cache",
    "HTTP_PROXY": "http://proxy:3128",
    "KEYBOARD": "us",
}


def test_worker_gets_the_environment_without_secrets() -> None:
    environment = worker_environment(SECRETS | NEEDED)
    assert not environment.keys() & SECRETS.keys()
    assert NEEDED.items() <= environment.items()


def test_parent_overrides_the_default_environment() -> None:
    assert worker_environment({})["THP_MEM_ALLOC_ENABLE"] == "1"
    assert worker_environment({"THP_MEM_ALLOC_ENABLE": "0"})["THP_MEM_ALLOC_ENABLE"] == "0"


def test_waiting_threads_of_the_worker_spin_for_a_bounded_time() -> None:
    assert 0 < int(worker_environment({})["GOMP_SPINCOUNT"]) <= 20_000
    assert worker_environment({"GOMP_SPINCOUNT": "7"})["GOMP_SPINCOUNT"] == "7"
    assert "GOMP_SPINCOUNT" not in worker_environment({"OMP_WAIT_POLICY": "ACTIVE"})
