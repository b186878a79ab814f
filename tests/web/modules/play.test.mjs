import assert from "node:assert/strict";
import { test } from "node:test";
import { buildRequest, continueRequest, listCalls, listInput, readDraft, readItem } from "../../../web/lib/play.js";

/** The request as it is sent: without fields that have no value. */
const rebuild = (request, change = {}) => JSON.parse(JSON.stringify(buildRequest({ ...readDraft(request), ...change })));
const message = { type: "message", role: "user", content: [{ type: "input_text", text: "Hi" }] };

test("a request that is not touched is sent as it was", () => {
  const requests = [
    { input: "Hi" },
    { input: ["Hi", "there"].map((content) => ({ role: "user", content })) },
    { input: [message, { type: "reasoning", id: "rs_1", summary: [], content: [{ type: "reasoning_text", text: "Hm." }] }] },
    { input: [{ role: "user", content: [{ type: "input_text", text: "a" }, { type: "input_image", image_url: "x" }] }], temperature: 0.5 },
    { input: [{ type: "function_call", name: "f", call_id: "c", arguments: "{}" }, { type: "function_call_output", call_id: "c", output: "1" }] },
    { input: "Hi", instructions: "Be kind.", tools: [], text: { format: { type: "text" }, verbosity: "low" }, reasoning: { effort: "low", summary: "auto" } },
    { input: "Hi", text: { verbosity: "low" }, reasoning: { summary: "auto" }, metadata: { "": "x", ["__proto__"]: "y" }, store: false },
    { input: "Hi", instructions: null, tools: null, text: null, reasoning: null, previous_response_id: "resp_1", unknown: { a: [1] } },
    { input: [] },
  ];
  for (const request of requests) {
    assert.deepEqual(rebuild({ ...request, model: "m", stream: false }), { ...request, stream: true });
  }
});

test("a changed text changes nothing beside it", () => {
  const draft = readDraft({ input: [message, { type: "function_call", name: "f", call_id: "c", arguments: "{}", id: "fc" }] });
  assert.deepEqual(draft.items.map((item) => [item.label, item.text]), [["user", "Hi"], ["function_call f", "{}"]]);
  const items = draft.items.map((item) => ({ ...item, text: `${item.text}!` }));
  assert.deepEqual(buildRequest({ ...draft, items }).input, [
    { type: "message", role: "user", content: [{ type: "input_text", text: "Hi!" }] },
    { type: "function_call", name: "f", call_id: "c", arguments: "{}!", id: "fc" },
  ]);
  assert.deepEqual(message.content[0].text, "Hi");
});

test("fields of the form replace those of the request", () => {
  const request = { input: "Hi", text: { verbosity: "low" }, reasoning: { summary: "auto" }, temperature: 1 };
  const change = { instructions: "Be brief.", tools: '[{"type": "function"}]', format: '{"type": "json_object"}', effort: "high" };
  assert.deepEqual(rebuild(request, change), {
    input: "Hi", instructions: "Be brief.", temperature: 1, stream: true, tools: [{ type: "function" }],
    text: { verbosity: "low", format: { type: "json_object" } }, reasoning: { summary: "auto", effort: "high" },
  });
  assert.deepEqual(rebuild({ input: "Hi", tools: [1], instructions: "x" }, { tools: " ", instructions: "", rest: "" }), { input: "Hi", stream: true });
});

test("a text and more items become a list", () => {
  const draft = readDraft({ input: "Hi" });
  const items = [...draft.items, readItem({ role: "assistant", content: "Hello." })];
  assert.deepEqual(buildRequest({ ...draft, items }).input, [{ role: "user", content: "Hi" }, { role: "assistant", content: "Hello." }]);
});

test("what is no JSON is named", () => {
  const odd = { items: [readItem("Hi"), { ...readItem({ type: "x" }), text: "{" }] };
  for (const [change, name] of [[{ tools: "[" }, "Tools"], [{ format: "x" }, "Format"], [{ rest: "{'a'}" }, "Other fields"], [odd, "Item 1"]]) {
    assert.throws(() => rebuild({ input: "Hi" }, change), (error) => error instanceof SyntaxError && error.message.startsWith(`${name}: `));
  }
});

test("no request is too odd to be read", () => {
  for (const odd of [{}, { input: null, text: 5, reasoning: "x", tools: "x", instructions: {} }, { input: [null, 1, "a", [], {}] }]) {
    assert.equal(typeof JSON.stringify(rebuild(odd)), "string");
  }
  assert.deepEqual([listInput(undefined), listInput("a"), listInput([1])], [[], [{ role: "user", content: "a" }], [1]]);
});

test("answers follow the calls that they are for", () => {
  const items = [
    { type: "reasoning", id: "rs" }, { type: "function_call", name: "f", call_id: "1", arguments: "{}" },
    { type: "custom_tool_call", name: "g", call_id: "2", input: "x" }, { type: "web_search_call", id: "ws" }, { type: "function_call" },
  ];
  assert.deepEqual(listCalls(items).map((call) => call.call_id), ["1", "2"]);
  assert.deepEqual(continueRequest({ input: "Hi", model: "m" }, items, ["yes"]), {
    model: "m",
    input: [
      { role: "user", content: "Hi" }, ...items,
      { type: "function_call_output", call_id: "1", output: "yes" }, { type: "custom_tool_call_output", call_id: "2", output: "" },
    ],
  });
});
