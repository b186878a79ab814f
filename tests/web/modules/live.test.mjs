import assert from "node:assert/strict";
import { test } from "node:test";
import { extendSeries, formatBytes, formatRate, MAX_POINTS, readFrame } from "../../../web/lib/live.js";

const turn = (id, output) => ({ id, api: "chat", model: "m", stage: "decode", seconds: 2.5, input_tokens: 9, cached_tokens: 4, output_tokens: output });
const engine = (model, generated) => ({
  model, running: 2, waiting: 1, max_num_seqs: 16, generated_tokens: generated, prompt_tokens: 200, prefix_hit_tokens: 122,
  running_cache_tokens: 30, idle_cache_tokens: 70,
});
const frame = (at, turns, engines) => ({ at, turns, turns_of_others: 3, engines, processes: [{ pid: 1, name: "p", resident_bytes: 2e8 }] });

test("a frame has the figures of the server", () => {
  const read = readFrame(frame(10, [turn("a", 5)], [engine("m", 50)]), null);
  assert.deepEqual(read.turns, [
    { id: "a", api: "chat", model: "m", stage: "decode", background: false, seconds: 2.5, input: 9, cached: 4, output: 5, rate: null },
  ]);
  const { figures, ...rest } = read.engines[0];
  assert.deepEqual(rest, { model: "m", running: 2, waiting: 1, slots: 16, rate: null, hits: 0.61, held: 100 });
  assert.equal(figures.generated_tokens, 50);
  assert.deepEqual(read.sums, { rate: 0, running: 2, waiting: 1, bytes: 2e8 });
  assert.equal(read.others, 3);
});

test("rates are those since the frame before", () => {
  const before = frame(10, [turn("a", 5), turn("gone", 9)], [engine("m", 50), engine("n", 7)]);
  const read = readFrame(frame(12, [turn("new", 1), turn("a", 15)], [engine("n", 8), engine("m", 70)]), before);
  assert.deepEqual(read.turns.map((each) => each.rate), [null, 5]);
  assert.deepEqual(read.engines.map((each) => each.rate), [0.5, 10]);
  assert.equal(read.sums.rate, 10.5);
});

test("a total that shrinks is no negative rate, and a clock that stands still gives none", () => {
  const before = frame(10, [turn("a", 5)], [engine("m", 50)]);
  assert.equal(readFrame(frame(11, [turn("a", 2)], [engine("m", 1)]), before).turns[0].rate, 0);
  for (const at of [10, 9, null, "x", Infinity]) {
    assert.equal(readFrame(frame(at, [turn("a", 9)], [engine("m", 60)]), before).engines[0].rate, null);
  }
});

test("no frame is too odd to be read", () => {
  const odd = [null, undefined, 1, "x", [], {}, { turns: 1, engines: {}, processes: "x" }, { turns: [null, 1, {}], engines: [{}, 2], processes: [{}] }];
  for (const json of odd) {
    for (const before of [null, ...odd]) {
      const read = readFrame(json, before);
      assert.ok(read.turns.every((each) => each.id === "" && each.rate === null));
      assert.ok(read.engines.every((each) => each.hits === null && each.held === null && each.slots === null));
      assert.deepEqual(read.sums, { rate: 0, running: 0, waiting: 0, bytes: 0 });
    }
  }
});

test("a series keeps the latest frames", () => {
  let series = [];
  for (let i = 0; i < MAX_POINTS + 7; i++) series = extendSeries(series, i);
  assert.deepEqual([series.length, series[0], series.at(-1)], [MAX_POINTS, 7, MAX_POINTS + 6]);
});

test("figures are short", () => {
  assert.deepEqual([null, 2.1e8, 3.24e9].map(formatBytes), ["–", "210 MB", "3.2 GB"]);
  assert.deepEqual([null, 0, 9.94, 812.4].map(formatRate), ["–", "0.0", "9.9", "812"]);
});
