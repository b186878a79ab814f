// The Vercel AI SDK with @ai-sdk/openai, on Responses and on chat completions, and with @ai-sdk/anthropic.
// Tools and schemas are strict.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, Output, stepCountIs, streamText, tool as defineTool } from "ai";
import { z } from "zod";
import { describeError, joinPieces, person, readBrokenStream, runScenarios, task, tool, tooMuch, unknownModel } from "./scenarios.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false; // they would stand among the results

const tools = {
  [tool.name]: defineTool({
    description: tool.description,
    inputSchema: z.object({ city: z.string() }),
    strict: true,
    execute: async () => task.tool_result,
  }),
};

// `choose` returns the model of a name.
function scenariosOf(choose, providerOptions) {
  const ask = (prompt, fields = {}) => ({
    model: choose(task.model),
    prompt: task.prompts[prompt],
    maxRetries: 0,
    providerOptions,
    ...fields,
  });
  const useTools = { tools, stopWhen: stepCountIs(3) };

  // Returns the result of a stream. The SDK does not raise the errors of streams.
  async function readStream(prompt, fields) {
    let failure;
    const result = streamText(ask(prompt, { ...fields, onError: ({ error }) => (failure = error) }));
    const pieces = await joinPieces(result.textStream);
    if (failure) throw failure;
    return { pieces, steps: await result.steps };
  }

  function describeReasoning(step) {
    return { text: step.text, reasoning: step.reasoningText ?? null };
  }

  function describeTools([first, last]) {
    const calls = first.toolCalls.map((call) => [call.toolName, call.input]);
    return { calls, reasoning: first.reasoningText ?? null, text: last.text };
  }

  return {
    async text() {
      const result = await generateText(ask("text"));
      return { text: result.text, output_tokens: result.usage.outputTokens };
    },
    text_stream: async () => (await readStream("text")).pieces,
    reasoning: async () => describeReasoning(await generateText(ask("reasoning"))),
    reasoning_stream: async () => describeReasoning((await readStream("reasoning")).steps[0]),
    tools: async () => describeTools((await generateText(ask("tools", useTools))).steps),
    tools_stream: async () => describeTools((await readStream("tools", useTools)).steps),
    structured: async () => ({ parsed: (await generateText(ask("structured", { output: Output.object({ schema: person }) }))).output }),
    broken_stream: () => readBrokenStream(() => readStream("broken")),
    // Not the temperature: @ai-sdk/anthropic replaces one that is too high, and sends neither of the two with thinking.
    bad_request: () => describeError(() => generateText(ask("text", { topP: tooMuch, providerOptions: {} }))),
    unknown_model: () => describeError(() => generateText(ask("text", { model: choose(unknownModel) }))),
  };
}

const openai = createOpenAI({ baseURL: `${task.roots.content}/v1`, apiKey: "none" });
const summaries = createOpenAI({ baseURL: `${task.roots.summary}/v1`, apiKey: "none" });
const anthropic = createAnthropic({ baseURL: `${task.roots.content}/v1`, apiKey: "none" });
const thinking = { type: "enabled", budgetTokens: 1024 };
await runScenarios({
  "AI SDK openai()": scenariosOf(openai),
  "AI SDK openai(), summaries": scenariosOf(summaries),
  "AI SDK openai.chat()": scenariosOf(openai.chat),
  "AI SDK anthropic()": scenariosOf(anthropic, { anthropic: { thinking } }),
});
