// The Vercel AI SDK reads files one after the other while the server compacts its conversation. The task is that of
// agents_compaction.py. Prints for each run the answers, the paths that were read, and the number of compactions.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const task = JSON.parse(process.argv[2]);
const openai = createOpenAI({ baseURL: task.url, apiKey: "none" });
globalThis.AI_SDK_LOG_WARNINGS = false; // they would stand among the results

const read_file = tool({
  description: "Returns the text of a file.",
  inputSchema: z.object({ path: z.string() }),
  execute: async ({ path }) => task.files[path],
});

async function runSteps(stream, messages, store) {
  const contextManagement = [{ type: "compaction", compactThreshold: task.threshold }];
  const options = {
    model: openai(task.model),
    messages,
    tools: { read_file },
    stopWhen: stepCountIs(40),
    maxRetries: 0,
    providerOptions: { openai: { contextManagement, ...(store === null ? {} : { store }) } },
  };
  if (!stream) return await generateText(options);
  let failure;
  const result = streamText({ ...options, onError: ({ error }) => (failure = error) });
  await result.consumeStream();
  if (failure) throw failure;
  return { steps: await result.steps, text: await result.text, responseMessages: await result.responseMessages };
}

async function readFiles(stream, store) {
  const messages = [{ role: "user", content: task.prompt }];
  const first = await runSteps(stream, messages, store);
  const following = [...messages, ...first.responseMessages, { role: "user", content: task.follow_up }];
  const again = await runSteps(stream, following, store);
  return {
    text: first.text,
    again: again.text,
    paths: first.steps.flatMap((step) => step.toolCalls.map(({ input }) => input.path)),
    compactions: first.steps.flatMap((step) => step.content).filter(({ kind }) => kind === "openai.compaction").length,
  };
}

const runs = {
  run: [false, null],
  "run, store False": [false, false],
  stream: [true, true],
  "stream, store False": [true, false],
};
const results = {};
for (const name of task.runs) {
  try {
    results[name] = await readFiles(...runs[name]);
  } catch (error) {
    results[name] = { failure: String(error.stack ?? error).slice(0, 1500) };
  }
}
process.stdout.write(JSON.stringify(results));
