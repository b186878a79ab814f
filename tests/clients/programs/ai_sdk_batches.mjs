// Batches with the Vercel AI SDK. Argument: {url, key, model, requests, tool}: user texts by id, and the id that may call a tool.
// Prints what the SDK made of a batch that ends, of one that is cancelled, and of the list of both.
import { createOpenAI } from "@ai-sdk/openai";
import {
  experimental_cancelBatch as cancelBatch,
  experimental_getBatchResults as getBatchResults,
  experimental_getBatchStatus as getBatchStatus,
  experimental_listBatches as listBatches,
  experimental_startBatch as startBatch,
  tool,
} from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false; // they would stand among the results

const task = JSON.parse(process.argv[2]);
const provider = createOpenAI({ baseURL: task.url, apiKey: task.key });
const tools = { get_weather: tool({ description: "Returns the weather in a city.", inputSchema: z.object({ city: z.string() }) }) };

const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

function start(requests) {
  return startBatch({
    provider,
    providerOptions: { openai: { inputFileExpiresAfter: 7200 } },
    requests: Object.entries(requests).map(([id, { prompt, ...fields }]) => ({
      type: "text",
      id,
      model: task.model,
      prompt,
      ...(id === task.tool ? { tools } : {}),
      ...fields,
    })),
  });
}

async function waitUntil(batch, condition) {
  let status;
  while (!condition((status = await getBatchStatus({ provider, batch })))) await sleep(10);
  return status;
}

async function readResults(batch) {
  const results = [];
  for await (const result of getBatchResults({ provider, batch, tools })) results.push(result);
  return results.map(({ id, status, error, text, content, finishReason, usage }) => ({
    id,
    status,
    ...(error ? { error: [error.code, error.statusCode ?? null] } : {}),
    ...(status === "succeeded"
      ? {
          text,
          finishReason,
          types: content.map((part) => part.type),
          calls: content.filter((part) => part.type === "tool-call").map((part) => [part.toolName, part.input]),
          tokens: [usage.outputTokens, usage.outputTokenDetails.reasoningTokens],
        }
      : {}),
  }));
}

const batch = await start(task.requests);
const { inputFileId, inputFileExpiresAt } = batch.providerMetadata.openai;
const begun = { status: batch.status, raw: batch.rawStatus, warnings: batch.warnings.length, has_file: inputFileId.startsWith("file-") };
begun.lifetime_min = Math.round((new Date(inputFileExpiresAt) - new Date(batch.createdAt)) / 60_000);
const done = await waitUntil(batch, ({ status }) => status !== "pending");
const completed = { status: done.status, counts: done.requestCounts, results: await readResults(batch) };

const endless = await start(task.endless);
const running = await waitUntil(endless, ({ requestCounts }) => requestCounts.completed === 1);
await cancelBatch({ provider, batch: endless });
const ended = await waitUntil(endless, ({ status }) => status !== "pending");
const cancelled = { statuses: [running.rawStatus, ended.rawStatus, ended.status], results: await readResults(endless) };

const page = await listBatches({ provider, limit: 1 });
const rest = await listBatches({ provider, limit: 1, cursor: page.nextCursor });
const names = new Map([[batch.id, "first"], [endless.id, "second"]]);
const listed = [...page.batches, ...rest.batches].map(({ id, rawStatus }) => [names.get(id), rawStatus]);
process.stdout.write(JSON.stringify({ begun, completed, cancelled, listed, last: rest.nextCursor ?? null }));
