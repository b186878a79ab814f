// The WebSocket session of OpenAI's SDK: lanes whose turns are steered, and a fork of one of them.
//
// The program is run as `node PROGRAM TASK`, with the task of `lanes_client.py`, and prints the same results.

import OpenAI from "openai";
import { ResponsesWebSocketSession } from "openai/lib/responses/responses-websocket-session";
import { ResponsesWS } from "openai/resources/responses/ws";

const task = JSON.parse(process.argv[2]);
const ENDINGS = ["response.completed", "response.incomplete", "response.failed"];
const say = (text) => ({ type: "message", role: "user", content: text });
const makeCreate = (items, previous) => ({
  model: task.model,
  tools: task.tools,
  store: true,
  input: items,
  previous_response_id: previous,
});

class LaneRun {
  constructor(session, connection, name, beforeTurn) {
    Object.assign(this, { lane: session.lane(name), connection, name, beforeTurn });
    Object.assign(this, { events: [], steers: [], finals: [], ended: new Set(), latest: { id: null, output: [] } });
  }

  async run(turns) {
    for (const [number, moments] of turns.entries()) {
      this.beforeTurn?.(number, this.latest.id);
      await this.runTurn(`${this.name}-${String(number).padStart(2, "0")}`, moments.toSorted((a, b) => a - b));
      const text = this.latest.output.flatMap((item) => item.content ?? []).filter((part) => part.type === "output_text");
      this.finals.push([this.latest.id, this.latest.status, text.map((part) => part.text).join("")]);
    }
  }

  async runTurn(key, moments) {
    const calls = this.latest.output.filter((item) => item.type === "function_call");
    const outputs = calls.map((item) => ({ type: "function_call_output", call_id: item.call_id, output: "text" }));
    this.lane.create(makeCreate([...outputs, say(`Turn ${key}.`)], this.latest.id));
    const start = this.events.length;
    const id = (await this.receive()).response.id;
    while (moments.length || !this.isSettled()) {
      const own = this.events.slice(start).filter((event) => !event.type.startsWith("response.steer.")).length;
      if (moments.length && (this.ended.has(id) || moments[0] <= own)) {
        this.steer(id, `Steer ${key} at ${moments.shift()}.`);
      } else {
        await this.receive();
      }
    }
  }

  steer(id, text) {
    this.steers.push({ parent: id, text });
    this.connection.send({ type: "response.steer", previous_response_id: id, input: text });
  }

  async receive() {
    const event = await this.lane.receive();
    this.events.push(event);
    if (ENDINGS.includes(event.type)) {
      this.latest = event.response;
      this.ended.add(this.latest.id);
    }
    return event;
  }

  isSettled() {
    const list = (...types) => this.events.filter((event) => types.includes(event.type));
    const created = list("response.created");
    const accepted = list("response.steer.accepted");
    const failed = list("response.steer.failed");
    const rejected = failed.filter((event) => event.steer.id === undefined);
    const followed = new Set(created.map((event) => event.response.previous_response_id));
    const placed = new Set([...failed, ...list("response.steer.pending")].map((event) => event.steer.id));
    return (
      created.length === list(...ENDINGS).length &&
      accepted.length + rejected.length === this.steers.length &&
      accepted.every(({ steer }) => placed.has(steer.id) || followed.has(steer.previous_response_id))
    );
  }
}

async function readStored(client, runs) {
  const steered = new Set(runs.flatMap((run) => run.steers.map((steer) => steer.parent)));
  const stored = {};
  for (const event of runs.flatMap((run) => run.events).filter((each) => each.type === "response.created")) {
    const { id, previous_response_id: previous } = event.response;
    if (steered.has(id) || steered.has(previous)) {
      const { output_text: _, ...response } = await client.responses.retrieve(id);
      const input = [];
      for await (const item of client.responses.inputItems.list(id, { order: "asc" })) {
        input.push(item);
      }
      stored[id] = { response, input };
    }
  }
  return stored;
}

const client = new OpenAI({ baseURL: task.url, apiKey: "none", maxRetries: 0 });
const connection = new ResponsesWS(client);
const session = new ResponsesWebSocketSession(connection, {
  maxLanes: 40,
  maxBufferedEvents: 100_000,
  maxBufferedBytes: 2 ** 28,
});
const unnamed = [];
connection.on("event", (event) => event.stream_id === undefined && unnamed.push(event));
connection.on("error", () => {}); // errors of requests are events, too
await new Promise((resolve, reject) => {
  connection.socket.on("open", resolve);
  connection.socket.on("error", reject);
});
const fork = session.lane(task.fork.lane);
const sendFork = (number, latest) => number === task.fork.turn && fork.create(makeCreate([say("Fork.")], latest));
const runs = Object.keys(task.lanes).map(
  (name) => new LaneRun(session, connection, name, name === task.fork.source ? sendFork : undefined),
);
await Promise.all(runs.map((run) => run.run(task.lanes[run.name])));
const forked = await fork.finalResponse();
connection.close();
const results = {
  lanes: Object.fromEntries(runs.map((run) => [run.name, run.events])),
  steers: runs.flatMap((run) => run.steers),
  finals: Object.fromEntries(runs.map((run) => [run.name, run.finals])),
  fork: [forked.previous_response_id, forked.output_text],
  unnamed,
  stored: await readStored(client, runs),
};
process.stdout.write(JSON.stringify(results));
