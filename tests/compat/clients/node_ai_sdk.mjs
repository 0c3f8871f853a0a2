// The AI SDK of npm (`ai`), conversations, streamed.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { streamText } from "ai";

let input = "";
for await (const piece of process.stdin) input += piece;
const task = JSON.parse(input);
const provider = createOpenAICompatible({ name: "quire", baseURL: `${task.http}/v1`, apiKey: "none" });
const texts = [];
for (const { prompt, params } of task.cases) {
  let text = "";
  const { fullStream } = streamText({
    model: provider(task.model),
    prompt,
    maxOutputTokens: params.max_tokens,
    temperature: params.temperature,
    maxRetries: 0,
    onError: () => {}, // it comes with the stream, too
  });
  for await (const part of fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") text += part.text;
  }
  texts.push(text);
}
process.stdout.write(JSON.stringify(texts));
