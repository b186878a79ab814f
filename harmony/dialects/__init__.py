"""The dialects: one declaration each, in the order in which a chat template's markers are checked.

A dialect whose markers include those of another one precedes it.
"""

from collections.abc import Mapping

from antiphon.harmony.dialect import Dialect
from antiphon.harmony.dialects.deepseek import V3, V4, V31, V32, V41
from antiphon.harmony.dialects.gemma import FUNCTIONGEMMA, GEMMA3, GEMMA4
from antiphon.harmony.dialects.gigachat import GIGACHAT, GIGACHAT30, GIGACHAT35
from antiphon.harmony.dialects.glm import GLM, HY3, HY3_PREVIEW
from antiphon.harmony.dialects.headers import HARMONY, SOLAR, SOLAR2
from antiphon.harmony.dialects.hermes import HERMES
from antiphon.harmony.dialects.json_arrays import (
    APERTUS,
    APRIEL,
    COHERE,
    GRANITE3,
    HUNYUAN,
    JAMBA,
    MINIMAX1,
    NEMOTRON2,
    PHI4,
    XLAM,
)
from antiphon.harmony.dialects.json_objects import ERNIE, INTERNLM, LONGCAT, STEP3
from antiphon.harmony.dialects.kimi import K3, KIMI
from antiphon.harmony.dialects.llama import LLAMA3, LLAMA4
from antiphon.harmony.dialects.minimax import DOTS, M3, MINICPM, MINIMAX
from antiphon.harmony.dialects.mistral import MISTRAL, MISTRAL_V11
from antiphon.harmony.dialects.plain import PLAIN
from antiphon.harmony.dialects.pythonic import LFM2, OLMO3, PYTHONIC
from antiphon.harmony.dialects.qwen3coder import QWEN3CODER, SEED

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        SEED, HY3, HY3_PREVIEW, GLM, V41, V32, V4, V3, V31, KIMI, K3, M3, MINIMAX, DOTS, MINICPM, SOLAR, SOLAR2,
        HARMONY, STEP3, MISTRAL_V11, MISTRAL, NEMOTRON2, LLAMA4, LLAMA3, OLMO3, LFM2, GEMMA4, FUNCTIONGEMMA, PHI4,
        GRANITE3, APERTUS, COHERE, GIGACHAT35, GIGACHAT, GIGACHAT30, MINIMAX1, HUNYUAN, APRIEL, JAMBA, INTERNLM,
        LONGCAT, ERNIE, QWEN3CODER, HERMES, XLAM, GEMMA3, PYTHONIC, PLAIN,
    )
}  # fmt: skip
"""Dialects by name."""

GPT_OSS = "gpt-oss"
"""Name of the dialect without a declaration: OpenAI's own library, `openai_harmony`, renders and parses it."""
NAMES = (GPT_OSS, *DIALECTS)
