// What small models can't do, by the official SDKs in JavaScript: `node node_scripted.mjs BASE_URL`.
// The engine is a script: see the test that runs this, which checks what is printed.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
const require = createRequire(pathToFileURL(process.cwd() + "/"));
const { default: OpenAI } = await import(pathToFileURL(require.resolve("openai")));
const { default: Anthropic } = await import(pathToFileURL(require.resolve("@anthropic-ai/sdk")));
const { Ollama } = await import(pathToFileURL(require.resolve("ollama")));

const base = process.argv[2];
const openai = new OpenAI({ baseURL: `${base}/v1`, apiKey: "any", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: base, apiKey: "any", maxRetries: 0 });
const ollama = new Ollama({ host: base });
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const names = ["get_weather", "get_time"];
const functions = names.map((name) => ({ type: "function", function: { name, parameters } }));
const flat = names.map((name) => ({ type: "function", name, parameters, strict: false }));
const anthropicTools = names.map((name) => ({ name, input_schema: parameters }));
const say = (content) => [{ role: "user", content }];
const parsed = (calls) => calls.map((one) => [one.function.name, one.function.arguments]);
const found = { tools: {}, thinking: {}, broken: {} };

// Parallel calls, with and without a stream.
const whole = await openai.chat.completions.create({ model: "m", messages: say("tools"), tools: functions });
found.tools.chat = parsed(whole.choices[0].message.tool_calls);
const runner = openai.chat.completions.stream({ model: "m", messages: say("tools"), tools: functions });
found.tools.chatStream = parsed((await runner.finalChatCompletion()).choices[0].message.tool_calls);
const response = await openai.responses.stream({ model: "m", input: say("tools"), tools: flat }).finalResponse();
found.tools.responses = response.output.map((one) => [one.name, one.arguments]);
const use = await anthropic.messages
  .stream({ model: "m", max_tokens: 50, messages: say("tools"), tools: anthropicTools })
  .finalMessage();
found.tools.messages = use.content.map((one) => [one.name, JSON.stringify(one.input)]);
const lines = [];
for await (const part of await ollama.chat({ model: "m", messages: say("tools"), tools: functions, stream: true }))
  lines.push(...(part.message.tool_calls ?? []));
found.tools.ollama = lines.map((one) => [one.function.name, JSON.stringify(one.function.arguments)]);

// Reasoning apart from the text.
const thought = await openai.chat.completions.create({ model: "m", messages: say("think") });
found.thinking.chat = [thought.choices[0].message.reasoning_content, thought.choices[0].message.content];
const reasoned = await openai.responses.create({ model: "m", input: say("think") });
found.thinking.responses = [reasoned.output[0].content[0].text, reasoned.output_text];
const gathered = await openai.responses.stream({ model: "m", input: say("think") }).finalResponse();
found.thinking.responseStream = [gathered.output[0].content[0].text, gathered.output_text];
const message = await anthropic.messages.stream({ model: "m", max_tokens: 9, messages: say("think") }).finalMessage();
found.thinking.messages = [message.content[0].thinking, message.content[1].text];
const told = await ollama.chat({ model: "m", messages: say("think") });
found.thinking.ollama = [told.message.thinking, told.message.content];

// Images, and results of tools.
const url = "data:image/png;base64,AAAA";
const text = { type: "text", text: "What?" };
const source = { type: "base64", media_type: "image/png", data: "AAAA" };
const seen = await openai.chat.completions.create({
  model: "m", messages: say([text, { type: "image_url", image_url: { url } }]),
});
const seenResponse = await openai.responses.create({
  model: "m", input: say([{ type: "input_text", text: "What?" }, { type: "input_image", image_url: url, detail: "auto" }]),
});
const seenMessage = await anthropic.messages.create({
  model: "m", max_tokens: 9, messages: say([{ type: "image", source }, text]),
});
const seenOllama = await ollama.chat({ model: "m", messages: [{ role: "user", content: "What?", images: ["AAAA"] }] });
found.images = [
  seen.choices[0].message.content, seenResponse.output_text, seenMessage.content[0].text, seenOllama.message.content,
];
const call = { id: "c1", type: "function", function: { name: "get_time", arguments: "{}" } };
const resulted = await openai.chat.completions.create({
  model: "m",
  messages: [
    ...say("What time?"), { role: "assistant", content: null, tool_calls: [call] },
    { role: "tool", tool_call_id: "c1", content: "noon" },
  ],
});
const resultedResponse = await openai.responses.create({
  model: "m",
  input: [
    ...say("What time?"), { type: "function_call", call_id: "c1", name: "get_time", arguments: "{}" },
    { type: "function_call_output", call_id: "c1", output: "noon" },
  ],
});
const resultedMessage = await anthropic.messages.create({
  model: "m", max_tokens: 9, tools: anthropicTools,
  messages: [
    ...say("What time?"), { role: "assistant", content: [{ type: "tool_use", id: "c1", name: "get_time", input: {} }] },
    { role: "user", content: [{ type: "tool_result", tool_use_id: "c1", content: "noon" }] },
  ],
});
const resultedOllama = await ollama.chat({
  model: "m",
  messages: [
    ...say("What time?"), { role: "assistant", content: "", tool_calls: [{ function: { name: "get_time", arguments: {} } }] },
    { role: "tool", tool_name: "get_time", content: "noon" },
  ],
});
found.results = [
  resulted.choices[0].message.content, resultedResponse.output_text, resultedMessage.content[0].text,
  resultedOllama.message.content,
];

// An engine that breaks in the middle of a stream.
for (const [name, ask] of Object.entries({
  chat: async () => {
    for await (const _ of await openai.chat.completions.create({ model: "m", messages: say("break"), stream: true }));
  },
  responses: async () => {
    for await (const _ of await openai.responses.create({ model: "m", input: say("break"), stream: true }));
  },
  messages: () => anthropic.messages.stream({ model: "m", max_tokens: 9, messages: say("break") }).finalMessage(),
  ollama: async () => {
    for await (const _ of await ollama.chat({ model: "m", messages: say("break"), stream: true }));
  },
})) {
  try {
    await ask();
    found.broken[name] = "nothing was thrown";
  } catch (error) {
    found.broken[name] = String(error.message);
  }
}

// The rest.
const vectors = await openai.embeddings.create({ model: "m", input: ["a", "b"] });
found.embeddings = vectors.data.map((one) => one.embedding);
found.embed = (await ollama.embed({ model: "m", input: ["a", "b"] })).embeddings;
found.generated = (await ollama.generate({ model: "m", prompt: "hello" })).response;
found.completion = (await openai.completions.create({ model: "m", prompt: "hello" })).choices[0].text;
found.models = (await openai.models.list()).data.map((one) => one.id);
found.model = (await openai.models.retrieve("m")).id;
found.anthropicModels = (await anthropic.models.list()).data.map((one) => one.id);
found.shown = (await ollama.show({ model: "m" })).capabilities;

// A client that changes its mind, and one that asks for its request's end.
const leaving = new AbortController();
const stream = await openai.chat.completions.create(
  { model: "m", messages: say("hang"), stream: true }, { signal: leaving.signal },
);
for await (const _ of stream) leaving.abort();
found.left = leaving.signal.aborted;
const asking = openai.chat.completions
  .create({ model: "m", messages: say("hang") }, { headers: { "x-request-id": "from-node" } })
  .catch((error) => [error.status, error.code]);
let cancelled = 404;
while (cancelled === 404) cancelled = (await fetch(`${base}/v1/cancel/from-node`, { method: "POST" })).status;
found.cancelled = await asking;
console.log(JSON.stringify(found));
