// gRPC's C++ library, with what Debian's protoc makes of this repository's protos.
//
// It reads the task from stdin and writes the texts to stdout, both as JSON, which protobuf reads
// into a Struct.
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "quire/v1/inference.grpc.pb.h"

namespace {

using google::protobuf::Struct;
using google::protobuf::util::JsonStringToMessage;
using google::protobuf::util::MessageToJsonString;

// Throws where JSON could not be read or written.
template <typename Status>
void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

quire::v1::GenerateRequest request_of(const Struct& task_case) {
  quire::v1::GenerateRequest request;
  request.set_text(task_case.fields().at("prompt").string_value());
  std::string params;
  require(MessageToJsonString(task_case.fields().at("params").struct_value(), &params));
  require(JsonStringToMessage(params, request.mutable_sampling_params()));
  return request;
}

std::string answer(quire::v1::InferenceService::Stub& stub, const Struct& task_case) {
  grpc::ClientContext context;
  const auto reader = stub.Generate(&context, request_of(task_case));
  std::string text;
  quire::v1::GenerateResponse event;
  while (reader->Read(&event)) text += event.delta().text();
  const grpc::Status status = reader->Finish();
  if (!status.ok()) throw std::runtime_error("Generate: " + status.error_message());
  return text;
}

}  // namespace

int main() {
  const std::string input(std::istreambuf_iterator<char>(std::cin), {});
  Struct task;
  require(JsonStringToMessage(input, &task));
  const auto stub = quire::v1::InferenceService::NewStub(grpc::CreateChannel(
      task.fields().at("grpc").string_value(), grpc::InsecureChannelCredentials()));
  google::protobuf::ListValue texts;
  for (const auto& task_case : task.fields().at("cases").list_value().values())
    texts.add_values()->set_string_value(answer(*stub, task_case.struct_value()));
  std::string output;
  require(MessageToJsonString(texts, &output));
  std::cout << output;
}
