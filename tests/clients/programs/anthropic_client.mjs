// Anthropic's SDK for Node: messages.create, stream, parse and countTokens, and a tool loop that sends thinking back.
import Anthropic from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { describeError, joinPieces, person, readBrokenStream, runScenarios, task, tool, tooMuch, unknownModel } from "./scenarios.mjs";

const client = new Anthropic({ baseURL: task.roots.content, apiKey: "none", maxRetries: 0 });
const tools = [{ name: tool.name, description: tool.description, input_schema: tool.parameters }];
const thinking = { type: "enabled", budget_tokens: 1024 };

function ask(prompt, fields = {}) {
  return { model: task.model, max_tokens: 4000, messages: [{ role: "user", content: task.prompts[prompt] }], ...fields };
}

function textOf(message, type = "text", key = type) {
  return message.content.filter((block) => block.type === type).map((block) => block[key]).join("") || null;
}

async function* readDeltas(stream) {
  for await (const event of stream) if (event.type === "content_block_delta") yield event.delta.text;
}

function describeReasoning(message) {
  return { text: textOf(message), reasoning: textOf(message, "thinking") };
}

async function runTool(send) {
  const request = ask("tools", { tools, thinking });
  const first = await send(request);
  const calls = first.content.filter((block) => block.type === "tool_use");
  const results = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: task.tool_result }));
  const messages = [...request.messages, { role: "assistant", content: first.content }, { role: "user", content: results }];
  const second = await send({ ...request, messages });
  return { calls: calls.map((call) => [call.name, call.input]), reasoning: textOf(first, "thinking"), text: textOf(second) };
}

await runScenarios({
  "anthropic Node SDK": {
    async text() {
      const message = await client.messages.create(ask("text"));
      return { text: textOf(message), output_tokens: message.usage.output_tokens };
    },
    text_stream: async () => joinPieces(readDeltas(await client.messages.create(ask("text", { stream: true })))),
    reasoning: async () => describeReasoning(await client.messages.create(ask("reasoning", { thinking }))),
    reasoning_stream: async () => describeReasoning(await client.messages.stream(ask("reasoning", { thinking })).finalMessage()),
    tools: () => runTool((request) => client.messages.create(request)),
    tools_stream: () => runTool((request) => client.messages.stream(request).finalMessage()),
    async structured() {
      const format = zodOutputFormat(person);
      return { parsed: (await client.messages.parse(ask("structured", { output_config: { format } }))).parsed_output };
    },
    async count_tokens() {
      const { input_tokens: counted } = await client.messages.countTokens({ model: task.model, messages: ask("tools").messages, tools });
      const { usage } = await client.messages.create(ask("tools", { tools }));
      return { equals_usage: counted > 0 && counted === usage.input_tokens };
    },
    broken_stream: () => readBrokenStream(() => client.messages.stream(ask("broken")).finalMessage()),
    bad_request: () => describeError(() => client.messages.create(ask("text", { temperature: tooMuch }))),
    unknown_model: () => describeError(() => client.messages.create(ask("text", { model: unknownModel }))),
  },
});
