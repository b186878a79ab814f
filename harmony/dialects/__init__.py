"""The dialects: one declaration each, in the order in which a chat template's signs are looked for.

A family whose signs another one has too stands before it.
"""

from collections.abc import Mapping

from harmony.dialect import Dialect
from harmony.dialects.arrays import APERTUS, COHERE, GIGACHAT, GRANITE3, HUNYUAN, JAMBA, PHI4, XLAM
from harmony.dialects.deepseek import V3, V4, V31, V32
from harmony.dialects.gemma import FUNCTIONGEMMA, GEMMA4
from harmony.dialects.glm import GLM
from harmony.dialects.hermes import HERMES
from harmony.dialects.kimi import K3, KIMI
from harmony.dialects.llama import LLAMA3, LLAMA4
from harmony.dialects.minimax import DOTS, M3, MINICPM, MINIMAX
from harmony.dialects.mistral import MISTRAL, MISTRAL_V11
from harmony.dialects.objects import ERNIE, INTERNLM, LONGCAT, STEP3
from harmony.dialects.plain import PLAIN
from harmony.dialects.pythonic import LFM2, OLMO3, PYTHONIC
from harmony.dialects.qwen3coder import QWEN3CODER
from harmony.dialects.seed import SEED

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        SEED, GLM, V32, V4, V3, V31, KIMI, K3, M3, MINIMAX, DOTS, MINICPM, STEP3, MISTRAL_V11, MISTRAL, LLAMA4, LLAMA3,
        OLMO3, LFM2, GEMMA4, FUNCTIONGEMMA, GRANITE3, APERTUS, COHERE, GIGACHAT, HUNYUAN, JAMBA, PHI4, INTERNLM,
        LONGCAT, ERNIE, QWEN3CODER, HERMES, XLAM, PYTHONIC, PLAIN,
    )
}  # fmt: skip
"""By name."""

GPT_OSS = "gpt-oss"
"""The one that is no declaration: OpenAI's own library reads and writes it."""
NAMES = (GPT_OSS, *DIALECTS)
