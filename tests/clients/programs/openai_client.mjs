// OpenAI's SDK for Node: chat.completions.create, stream, parse and runTools, and completions.create.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { describeError, joinPieces, person, readBrokenStream, runScenarios, task, tool, tooMuch, unknownModel } from "./scenarios.mjs";

const client = new OpenAI({ baseURL: `${task.roots.content}/v1`, apiKey: "none", maxRetries: 0 });
const { chat, completions } = client;

function ask(prompt, fields = {}) {
  return { model: task.model, messages: [{ role: "user", content: task.prompts[prompt] }], ...fields };
}

function complete(fields = {}) {
  return completions.create({ model: task.model, prompt: task.prompts.text, ...fields });
}

async function* readChat(stream, key) {
  for await (const chunk of stream) yield chunk.choices[0]?.delta[key];
}

async function* readCompletion(stream) {
  for await (const chunk of stream) yield chunk.choices[0]?.text;
}

// The loop of two turns by hand, with reasoning sent back as the SDK received it.
async function runTool() {
  const tools = [{ type: "function", function: tool }];
  const request = ask("tools", { tools });
  const first = (await chat.completions.create(request)).choices[0].message;
  const results = first.tool_calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: task.tool_result }));
  const second = await chat.completions.create({ ...request, messages: [...request.messages, first, ...results] });
  return {
    calls: first.tool_calls.map((call) => [call.function.name, call.function.arguments]),
    reasoning: first.reasoning_content,
    text: second.choices[0].message.content,
  };
}

// The loop that the SDK runs itself. It keeps only the last delta of fields that OpenAI's API lacks, such as reasoning.
async function streamTool() {
  const calls = [];
  const run = (city) => (calls.push([tool.name, city]), task.tool_result);
  const tools = [{ type: "function", function: { ...tool, parse: JSON.parse, function: run } }];
  const runner = chat.completions.runTools(ask("tools", { tools, stream: true }));
  return { calls, reasoning: null, text: await runner.finalContent() };
}

await runScenarios({
  "openai Node SDK chat": {
    async text() {
      const reply = await chat.completions.create(ask("text"));
      return { text: reply.choices[0].message.content, output_tokens: reply.usage.completion_tokens };
    },
    text_stream: () => joinPieces(readChat(chat.completions.stream(ask("text")), "content")),
    async reasoning() {
      const { content, reasoning_content: reasoning } = (await chat.completions.create(ask("reasoning"))).choices[0].message;
      return { text: content, reasoning };
    },
    async reasoning_stream() {
      const stream = chat.completions.stream(ask("reasoning"));
      const { text: reasoning } = await joinPieces(readChat(stream, "reasoning_content"));
      return { text: await stream.finalContent(), reasoning };
    },
    tools: runTool,
    async structured() {
      const format = zodResponseFormat(person, "person");
      return { parsed: (await chat.completions.parse(ask("structured", { response_format: format }))).choices[0].message.parsed };
    },
    broken_stream: () => readBrokenStream(() => chat.completions.stream(ask("broken")).finalContent()),
    bad_request: () => describeError(() => chat.completions.create(ask("text", { temperature: tooMuch }))),
    unknown_model: () => describeError(() => chat.completions.create(ask("text", { model: unknownModel }))),
  },
  "openai Node SDK runTools": { tools_stream: streamTool },
  "openai Node SDK completions": {
    async text() {
      const reply = await complete();
      return { text: reply.choices[0].text, output_tokens: reply.usage.completion_tokens };
    },
    text_stream: async () => joinPieces(readCompletion(await complete({ stream: true }))),
    broken_stream: () => readBrokenStream(async () => joinPieces(readCompletion(await complete({ prompt: task.prompts.broken, stream: true })))),
    bad_request: () => describeError(() => complete({ temperature: tooMuch })),
    unknown_model: () => describeError(() => complete({ model: unknownModel })),
  },
});
