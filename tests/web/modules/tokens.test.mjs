import assert from "node:assert/strict";
import { test } from "node:test";
import {
  isTaken, findEvent, formatProbability, formatSurprise, listTexts, listTokens, SHADES, shadeOf,
} from "../../../web/lib/tokens.js";

test("tokens are those of the details, in order, with the event of their step", () => {
  const scored = (id, top = []) => ({ id, text: `t${id}`, logprob: -id, offset: 0, top });
  const lines = [{}, { detail: { logprobs: [scored(1), scored(2, [[2, "t2", -2], [7, "t7", -3]])] } }, { detail: {} }, { detail: { logprobs: [scored(3)] } }];
  const tokens = listTokens(lines, []);
  assert.deepEqual(tokens.map(({ id, text, event }) => [id, text, event]), [[1, "t1", 1], [2, "t2", 1], [3, "t3", 3]]);
  assert.deepEqual(tokens[1].top, [{ id: 2, text: "t2", logprob: -2 }, { id: 7, text: "t7", logprob: -3 }]);
  assert.deepEqual([0, 1, 2, 3, 9].map((event) => findEvent(tokens, event)), [0, 0, 2, 2, 2]);
});

test("odd details are tokens without what they lack", () => {
  const odd = [null, 1, {}, { text: {}, logprob: "x", top: "y" }, { logprob: null, top: [null, 1, {}, []] }];
  const tokens = listTokens([{ detail: { logprobs: odd } }, { detail: "x" }, { detail: { logprobs: "x" } }, null], []);
  assert.deepEqual(tokens.map(({ text, logprob }) => [text, logprob]), odd.map(() => ["", null]));
  assert.equal(tokens[4].top.length, 4);
});

test("there are five shades of likelihood", () => {
  const shades = [1, 0.9001, 0.8999, 0.5001, 0.4999, 0.1001, 0.0999, 0.0101, 0.0099, 1e-300].map((p) => shadeOf(Math.log(p)));
  assert.deepEqual(shades, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
  assert.deepEqual([shadeOf(null), shadeOf(-1e9), shadeOf(5), SHADES.length], [-1, 4, 0, 5]);
});

test("probabilities are numbers that people read", () => {
  assert.deepEqual([0, Math.log(0.5), Math.log(0.005), -99, null].map(formatProbability), ["100.0 %", "50.0 %", "0.50 %", "< 0.01 %", "–"]);
  assert.deepEqual([0, -1.5, null].map(formatSurprise), ["0.000", "1.500", "–"]);
});

test("texts stand beside the tokens of their step", () => {
  const events = [{ type: "a" }, { delta: "x" }, { delta: "y" }, { delta: {} }, { delta: 1 }];
  const lines = [{}, {}, { detail: { tokens: [1, 2] } }, { detail: { tokens: [3] } }, { detail: { tokens: "x" } }];
  assert.deepEqual(listTexts(lines, events), [
    { event: 1, text: "x", ids: [] }, { event: 2, text: "y", ids: [1, 2] }, { event: 3, text: "", ids: [3] },
  ]);
  assert.equal(findEvent([], 3), 0);
});

test("without details, the tokens are those of events, with the texts between them", () => {
  const score = (token, logprob, top_logprobs = []) => ({ token, bytes: [], logprob, top_logprobs });
  const events = [
    { type: "response.created" },
    { delta: "Hm.", logprobs: "x" },
    { delta: "He", logprobs: [score("H", -1, [score("H", -1), score("J", -2)]), score("e", -2)] },
    { delta: "l", logprobs: [score("l", -3)] },
    { delta: "", logprobs: [] },
  ];
  const lines = [{}, { detail: { tokens: [5] } }, { detail: { tokens: [6, 7] } }, { detail: { tokens: [8, 9] } }, {}];
  const tokens = listTokens(lines, events);
  assert.deepEqual(
    tokens.map(({ id, text, logprob, event }) => [id, text, logprob, event]),
    [[5, "Hm.", null, 1], [6, "H", -1, 2], [7, "e", -2, 2], [null, "l", -3, 3]],
  );
  assert.deepEqual(tokens[1].top.map((each) => isTaken(tokens[1], each)), [true, false]);
  assert.deepEqual(listTokens(lines, [{ delta: "x" }]), []);
  assert.deepEqual([{ id: 7, text: "z" }, { id: 6, text: "H" }].map((each) => isTaken(tokens[1], each)), [false, true]);
});
