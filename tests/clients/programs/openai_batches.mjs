// Files and batches with OpenAI's SDK for Node. Argument: a task of test_batch_clients.py, which says what is printed.
import OpenAI, { toFile } from "openai";

const task = JSON.parse(process.argv[2]);
const client = new OpenAI({ baseURL: task.url, apiKey: task.key, maxRetries: 0 });
const endpoint = "/v1/responses";

const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

async function upload(name) {
  const file = await toFile(Buffer.from(task.files[name]), `${name}.jsonl`);
  return client.files.create({ file, purpose: "batch", expires_after: { anchor: "created_at", seconds: 3600 } });
}

async function start(name) {
  const file = await upload(name);
  return client.batches.create({ input_file_id: file.id, endpoint, completion_window: "24h", metadata: { name } });
}

async function waitUntil(batch, condition) {
  while (!condition((batch = await client.batches.retrieve(batch.id)))) await sleep(10);
  return batch;
}

const waitEnd = (batch) => waitUntil(batch, ({ status }) => ["completed", "failed", "expired", "cancelled"].includes(status));

async function readLines(id) {
  const text = await (await client.files.content(id)).text();
  return text.trimEnd().split("\n").map((line) => JSON.parse(line));
}

async function statusOf(attempt) {
  try {
    await attempt();
  } catch (error) {
    return error.status;
  }
}

async function collect(pages) {
  const found = [];
  for await (const each of pages) found.push(each);
  return found;
}

const file = await upload("good");
const uploaded = [file.filename, file.bytes, file.purpose, file.status, file.expires_at - file.created_at];
const same = JSON.stringify(await client.files.waitForProcessing(file.id)) === JSON.stringify(await client.files.retrieve(file.id));
const content = await (await client.files.content(file.id)).text();

const begun = await start("good");
const done = await waitEnd(begun);
const lines = await readLines(done.output_file_id);
const errors = await readLines(done.error_file_id);
const completed = {
  statuses: [begun.status, done.status],
  counts: [done.request_counts.total, done.request_counts.completed, done.request_counts.failed],
  usage_is_sum: done.usage.total_tokens === lines.reduce((sum, line) => sum + line.response.body.usage.total_tokens, 0),
  reasoning_tokens: done.usage.output_tokens_details.reasoning_tokens,
  metadata: done.metadata,
  texts: lines.map((line) => [line.custom_id, line.response.body.output.at(-1).content[0].text]),
  errors: errors.map((line) => [line.custom_id, line.response.status_code, line.response.body.error.code]),
};

const faulty = await waitEnd(await start("faulty"));
const failed = { status: faulty.status, errors: faulty.errors.data.map(({ code, line }) => [code, line]) };

const endless = await waitUntil(await start("endless"), (batch) => batch.request_counts.completed === 1);
const refused = await statusOf(() => client.files.delete(endless.input_file_id));
const { status: cancelling } = await client.batches.cancel(endless.id);
const ended = await waitEnd(endless);
const cancelled = {
  statuses: [endless.status, cancelling, ended.status],
  deletion_of_input: refused,
  done: (await readLines(ended.output_file_id)).map((line) => line.custom_id),
  errors: (await readLines(ended.error_file_id)).map((line) => [line.custom_id, line.error.code]),
};

const batches = (await collect(client.batches.list({ limit: 2 }))).map((batch) => batch.metadata.name);
const page = await client.files.list({ limit: 1, purpose: "batch" });
const files = (await collect(page)).map((each) => each.filename);
const deleted = [(await client.files.delete(file.id)).deleted, await statusOf(() => client.files.retrieve(file.id))];
const bad = await statusOf(() => client.batches.create({ input_file_id: file.id, endpoint, completion_window: "24h" }));
const results = { uploaded, same, content, completed, failed, cancelled, batches, files, deleted, bad };
process.stdout.write(JSON.stringify(results));
