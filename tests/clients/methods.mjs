// Uses every method of `client.responses`, `client.conversations` and stored `client.chat.completions`. Arguments: base URL, API key.
// Prints {methods, worked: name -> true or a failure, raised: "ErrorClass name" -> {kind, status}}.
import OpenAI from "openai";

const [url, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey, maxRetries: 0 });
const { responses, conversations } = client;
const { completions } = client.chat;
const worked = {};
const raised = {};

function methodsOf(resource) {
  return Object.getOwnPropertyNames(Object.getPrototypeOf(resource))
    .filter((name) => name !== "constructor" && !name.startsWith("_"))
    .sort();
}

async function works(name, check) {
  try {
    worked[name] = (await check()) === true ? true : "check failed";
  } catch (error) {
    worked[name] = `${error.constructor.name}: ${error.message}`;
  }
}

async function raises(name, attempt) {
  try {
    await attempt();
    raised[name] = { kind: "nothing" };
  } catch (error) {
    raised[name] = { kind: error.constructor.name, status: error.status ?? null };
  }
}

const model = "scripted";
const response = await responses.create({ model, input: "Hi" });
await works("create", () => response.output_text === "Hello.");
await works("create stream", async () => {
  const kinds = [];
  for await (const event of await responses.create({ model, input: "Hi", stream: true })) kinds.push(event.type);
  return kinds.at(-1) === "response.completed";
});
await works("retrieve", async () => (await responses.retrieve(response.id)).id === response.id);
await works("retrieve stream", async () => {
  const numbers = [];
  for await (const event of await responses.retrieve(response.id, { stream: true, starting_after: 2 })) {
    numbers.push(event.sequence_number);
  }
  return numbers[0] === 3;
});
const format = { type: "json_schema", name: "city", schema: { type: "object", properties: { city: { type: "string" } } } };
await works("parse", async () => {
  const parsed = await responses.parse({ model, input: "A city", text: { format } });
  return JSON.parse(parsed.output_text).city === "Oslo";
});
await works("stream", async () => (await responses.stream({ model, input: "Hi" }).finalResponse()).output_text === "Hello.");
await works("inputItems.list", async () => (await responses.inputItems.list(response.id)).data.length === 1);
await works("inputTokens.count", async () => {
  const counted = await responses.inputTokens.count({ model, input: "Hi" });
  return counted.input_tokens === response.usage.input_tokens;
});
await works("compact", async () => (await responses.compact({ model, input: "Hi" })).output.at(-1).type === "compaction");
const running = await responses.create({ model, input: "Forever", background: true });
await works("background", () => running.status === "queued");
await works("cancel", async () => (await responses.cancel(running.id)).status === "cancelled");
await works("delete", async () => (await responses.delete(running.id), true));

const conversation = await conversations.create({ items: [{ role: "user", content: "Hi" }], metadata: { a: "b" } });
await works("conversations.create", () => conversation.metadata.a === "b");
await works("conversations.retrieve", async () => (await conversations.retrieve(conversation.id)).id === conversation.id);
await works("conversations.update", async () => (await conversations.update(conversation.id, { metadata: { c: "d" } })).metadata.c === "d");
const added = await conversations.items.create(conversation.id, { items: [{ role: "user", content: "More" }] });
const item = added.data[0].id;
await works("items.create", () => added.data.length === 1);
await works("items.list", async () => (await conversations.items.list(conversation.id)).data.length === 2);
await works("items.retrieve", async () => (await conversations.items.retrieve(item, { conversation_id: conversation.id })).id === item);
await works("a turn in it", async () => (await responses.create({ model, input: "On", conversation: conversation.id })).conversation.id === conversation.id);
await works("items.delete", async () => (await conversations.items.delete(item, { conversation_id: conversation.id })).id === conversation.id);
await works("conversations.delete", async () => (await conversations.delete(conversation.id)).deleted);

const chat = { model, messages: [{ role: "user", content: "Hi" }], store: true };
const completion = await completions.create({ ...chat, n: 2, metadata: { a: "b" } });
const streamed = await completions.stream({ ...chat, metadata: { a: "c" } }).finalChatCompletion();
const sameChoices = (one, other) => JSON.stringify(one.choices) === JSON.stringify(other.choices);
await works("completions.retrieve", async () => {
  const found = await completions.retrieve(completion.id);
  return found.metadata.a === "b" && found.choices.length === 2 && sameChoices(found, completion);
});
await works("completions.stream", async () => {
  const found = await completions.retrieve(streamed.id);
  return found.choices[0].message.content === streamed.choices[0].message.content;
});
await works("completions.list", async () => {
  const ids = [];
  for await (const each of completions.list({ limit: 1, order: "desc" })) ids.push(each.id);
  return ids.join() === [streamed.id, completion.id].join();
});
await works("completions.list metadata", async () => {
  const { data } = await completions.list({ model, metadata: { a: "b" } });
  return data.length === 1 && data[0].id === completion.id;
});
await works("completions.update", async () => (await completions.update(completion.id, { metadata: { c: "d" } })).metadata.c === "d");
await works("completions.messages.list", async () => (await completions.messages.list(completion.id)).data[0].content === "Hi");
await works("completions.delete", async () => (await completions.delete(completion.id)).deleted);

const unknownId = "resp_0000000000000000";
await raises("NotFoundError retrieve", () => responses.retrieve(unknownId));
await raises("NotFoundError retrieve stream", () => responses.retrieve(unknownId, { stream: true }));
await raises("NotFoundError delete", () => responses.delete(unknownId));
await raises("NotFoundError cancel", () => responses.cancel(unknownId));
await raises("NotFoundError inputItems", () => responses.inputItems.list(unknownId));
await raises("NotFoundError model", () => responses.create({ model: "nobody", input: "x" }));
await raises("NotFoundError compact", () => responses.compact({ model: "nobody", input: "x" }));
await raises("BadRequestError create", () => responses.create({ model, input: "x", temperature: 9 }));
await raises("BadRequestError stream", () => responses.stream({ model, input: "x", temperature: 9 }).finalResponse());
await raises("BadRequestError parse", () => responses.parse({ model, input: "x", temperature: 9 }));
await raises("BadRequestError previous", () => responses.create({ model, previous_response_id: unknownId }));
await raises("BadRequestError inputTokens", () => responses.inputTokens.count({ model, input: [] }));
await raises("BadRequestError cancel", () => responses.cancel(response.id));
await raises("NotFoundError conversations.retrieve", () => conversations.retrieve(conversation.id));
await raises("NotFoundError conversations.update", () => conversations.update(conversation.id, { metadata: {} }));
await raises("NotFoundError conversations.delete", () => conversations.delete(conversation.id));
await raises("NotFoundError items.list", () => conversations.items.list(conversation.id));
await raises("NotFoundError items.create", () => conversations.items.create(conversation.id, { items: [{ role: "user", content: "x" }] }));
await raises("NotFoundError items.retrieve", () => conversations.items.retrieve(item, { conversation_id: conversation.id }));
await raises("NotFoundError items.delete", () => conversations.items.delete(item, { conversation_id: conversation.id }));
await raises("NotFoundError completions.retrieve", () => completions.retrieve(completion.id));
await raises("NotFoundError completions.update", () => completions.update(completion.id, { metadata: {} }));
await raises("NotFoundError completions.delete", () => completions.delete(completion.id));
await raises("NotFoundError completions.messages.list", () => completions.messages.list(completion.id));
await raises("BadRequestError completions.list", () => completions.list({ limit: 101 }));
await raises("AuthenticationError", () => new OpenAI({ baseURL: url, apiKey: "x", maxRetries: 0 }).responses.retrieve(response.id));

const methods = {
  responses: methodsOf(responses),
  inputItems: methodsOf(responses.inputItems),
  inputTokens: methodsOf(responses.inputTokens),
  conversations: methodsOf(conversations),
  items: methodsOf(conversations.items),
  completions: methodsOf(completions),
  messages: methodsOf(completions.messages),
};
process.stdout.write(JSON.stringify({ methods, worked, raised }));
