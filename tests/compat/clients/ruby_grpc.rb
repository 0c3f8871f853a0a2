# Ruby's grpc, with what its tools make of this repository's protos.
require "json"
require "quire/v1/inference_services_pb"

task = JSON.parse($stdin.read)
stub = Quire::V1::InferenceService::Stub.new(task["grpc"], :this_channel_is_insecure)
texts = task["cases"].map do |each|
  params = Quire::V1::SamplingParams.decode_json(JSON.generate(each["params"]))
  request = Quire::V1::GenerateRequest.new(text: each["prompt"], sampling_params: params)
  stub.generate(request).map { |event| event.delta&.text.to_s }.join
end
$stdout.write(JSON.generate(texts))
