// The Vercel AI SDK with images: in a message, out of a tool, of an uploaded file, and a PDF, in the three APIs. The task is that
// of agents_images.py, and so are the results.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const task = JSON.parse(process.argv[2]);
const openai = createOpenAI({ baseURL: task.url, apiKey: "none" });
const anthropic = createAnthropic({ baseURL: task.url, apiKey: "none" });
globalThis.AI_SDK_LOG_WARNINGS = false; // they would stand among the results

const base64 = (url) => url.slice(url.indexOf(",") + 1);
const image = { type: "image", image: Buffer.from(base64(task.image), "base64") };
const pdf = { type: "file", data: Buffer.from(base64(task.pdf), "base64"), mediaType: "application/pdf" };
const look = tool({
  description: "Returns what there is to see.",
  inputSchema: jsonSchema({ type: "object", properties: {}, additionalProperties: false }),
  execute: async () => "seen",
  toModelOutput: () => ({
    type: "content",
    value: [
      { type: "text", text: "It is" },
      { type: "file", mediaType: "image/png", data: { type: "data", data: base64(task.image) } },
    ],
  }),
});

async function ask(model, content, { tools, stream = false, store } = {}) {
  const messages = [{ role: "user", content }];
  const texts = [];
  for (let turn = 0; turn < 2; turn++) {
    const providerOptions = store === undefined ? {} : { openai: { store } };
    const options = { model, messages, tools, stopWhen: stepCountIs(3), maxRetries: 0, providerOptions };
    let failure;
    const result = stream ? streamText({ ...options, onError: ({ error }) => (failure = error) }) : await generateText(options);
    if (stream) await result.consumeStream();
    if (failure) throw failure;
    texts.push(await result.text);
    messages.push(...(await result.response).messages, { role: "user", content: "And now?" });
  }
  return { text: texts[0], again: texts[1] };
}

const runs = {
  "responses, image": () => ask(openai(task.model), [image]),
  "responses, image, stream, store False": () => ask(openai(task.model), [image], { stream: true, store: false }),
  "responses, file": () =>
    ask(openai(task.model), [{ type: "file", data: { type: "reference", reference: { openai: task.file_id } }, mediaType: "image/png" }]),
  "responses, pdf": () => ask(openai(task.model), [pdf]),
  "responses, tool": () => ask(openai(task.model), "Look.", { tools: { look } }),
  "responses, tool, stream": () => ask(openai(task.model), "Look.", { tools: { look }, stream: true }),
  "chat, image": () => ask(openai.chat(task.model), [image]),
  "chat, pdf": () => ask(openai.chat(task.model), [pdf]),
  "anthropic, image": () => ask(anthropic(task.model), [image]),
  "anthropic, pdf": () => ask(anthropic(task.model), [pdf]),
  "anthropic, tool": () => ask(anthropic(task.model), "Look.", { tools: { look } }),
};
const results = {};
for (const [name, run] of Object.entries(runs)) {
  try {
    results[name] = await run();
  } catch (error) {
    results[name] = { failure: String(error.responseBody ?? error.stack ?? error).slice(0, 800) };
  }
}
process.stdout.write(JSON.stringify(results));
