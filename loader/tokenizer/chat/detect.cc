// SPDX-License-Identifier: Apache-2.0
// Which format a checkpoint's template is.
#include <algorithm>
#include <initializer_list>
#include <optional>

#include "kernels/base/error.h"
#include "loader/sha256.h"
#include "loader/tokenizer/chat/chat_template.h"
#include "loader/tokenizer/unicode/text.h"

namespace stoch {
namespace {

bool Has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// Without what may differ between files that mean the same: white space inside of tags, the newline after a block, which
// transformers drops (trim_blocks), the kind of quotes, line ends written as \\n.
std::string Canonical(std::string_view source) {
  std::string canonical;
  bool in_tag = false;
  char quote = 0;
  for (size_t i = 0; i < source.size(); ++i) {
    const char c = source[i];
    const std::string_view two = source.substr(i, 2);
    if (quote != 0) {
      if (two == "\\n") {
        canonical += '\n';
        ++i;
        continue;
      }
      canonical += c == quote ? '\'' : c;
      if (c == quote) quote = 0;
    } else if (in_tag && (two == "%}" || two == "}}")) {
      canonical += two;
      ++i;
      in_tag = false;
      if (two == "%}" && source.substr(i + 1).starts_with('\n')) ++i;
    } else if (in_tag) {
      if (c == '\'' || c == '"') quote = c;
      if (c != ' ' && c != '\n') canonical += quote != 0 ? '\'' : c;
    } else {
      canonical += c;
      if (two != "{%" && two != "{{") continue;
      canonical += two[1];
      ++i;
      in_tag = true;
    }
  }
  return canonical;
}

// Templates too long to be told by their parts: sha256 without white space at the end.
// Source: Qwen2.5-7B-Instruct, Qwen3-0.6B and Mistral-Nemo-Instruct-2407 as in models/templates of ye-NX/llama.cpp
// (1eeb523), a fork of ggml-org/llama.cpp, where they were not looked up; Mistral-7B-Instruct-v0.3, and Qwen3 again, as
// in COMPLEX_CHAT_TEMPLATES of huggingface/optimum-intel (e1de5be).
struct KnownHash {
  std::string_view sha256;
  ChatFormat format;
};
constexpr KnownHash kKnownHashes[] = {
    {"55b2f4a26ac9ee719330a61a0c39d9e538b0e9322212f048326318cff4f8674a", ChatFormat::kQwen25},
    {"87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5", ChatFormat::kQwen3},
    {"cafb64e0e9e5fd2503054b3479593fae39cbdfd52338ce8af9bb4664a8eb05bd", ChatFormat::kMistralV3},
    {"e7deee034838db2bfc7487788a3013d8a307ab69f72f3c54a85f06fd76007d4e", ChatFormat::kMistralTekken},
};

// Whole templates, canonical.
struct KnownText {
  std::string_view canonical;
  ChatFormat format;
};
constexpr KnownText kKnownTexts[] = {
    {"{%formessageinmessages%}{%ifloop.firstandmessages[0]['role']!='system'%}"
     "{{'<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n'}}{%endif%}"
     "{{'<|im_start|>'+message['role']+'\n'+message['content']+'<|im_end|>'+'\n'}}{%endfor%}"
     "{%ifadd_generation_prompt%}{{'<|im_start|>assistant\n'}}{%endif%}",
     ChatFormat::kQwen2},
    {"{{bos_token}}{%formessageinmessages%}{%if(message['role']=='user')!=(loop.index0%2==0)%}"
     "{{raise_exception('Conversation roles must alternate user/assistant/user/assistant/...')}}{%endif%}"
     "{%ifmessage['role']=='user'%}{{'[INST] '+message['content']+' [/INST]'}}{%elifmessage['role']=='assistant'%}"
     "{{message['content']+eos_token}}{%else%}{{raise_exception('Only user and assistant roles are supported!')}}"
     "{%endif%}{%endfor%}",
     ChatFormat::kMistral},
    {"{%-ifmessages[0]['role']=='system'%}    {%-setsystem_message=messages[0]['content']%}    "
     "{%-setloop_messages=messages[1:]%}{%-else%}    {%-setloop_messages=messages%}{%-endif%}\n{{-bos_token}}\n"
     "{%-formessageinloop_messages%}    {%-if(message['role']=='user')!=(loop.index0%2==0)%}        "
     "{{-raise_exception('After the optional system message, conversation roles must alternate "
     "user/assistant/user/assistant/...')}}\n    {%-endif%}    {%-ifmessage['role']=='user'%}        "
     "{%-ifloop.firstandsystem_messageisdefined%}            "
     "{{-' [INST] '+system_message+'\n\n'+message['content']+' [/INST]'}}\n        {%-else%}            "
     "{{-' [INST] '+message['content']+' [/INST]'}}\n        {%-endif%}    {%-elifmessage['role']=='assistant'%}       "
     " "
     "{{-' '+message['content']+eos_token}}\n    {%-else%}        {{-raise_exception('Only user and assistant roles "
     "are "
     "supported, with the exception of an initial optional system message!')}}\n    {%-endif%}{%-endfor%}",
     ChatFormat::kMistralV1},
    {"{%formessageinmessages%}{%ifmessage['role']=='user'%}{{'<|user|>\n'+message['content']+eos_token}}\n"
     "{%elifmessage['role']=='system'%}{{'<|system|>\n'+message['content']+eos_token}}\n"
     "{%elifmessage['role']=='assistant'%}{{'<|assistant|>\n'+message['content']+eos_token}}\n{%endif%}"
     "{%ifloop.lastandadd_generation_prompt%}{{'<|assistant|>'}}\n{%endif%}{%endfor%}",
     ChatFormat::kZephyr},
};

std::optional<ChatFormat> FindKnownTemplate(std::string_view source) {
  const std::string canonical = Canonical(source);
  for (const KnownText& known : kKnownTexts) {
    if (known.canonical == canonical) return known.format;
  }
  while (!source.empty() && (source.back() == '\n' || source.back() == ' ')) source.remove_suffix(1);
  const std::string sha256 = Sha256Hex(source);
  for (const KnownHash& known : kKnownHashes) {
    if (known.sha256 == sha256) return known.format;
  }
  return std::nullopt;
}

// Whether every `open` in the template goes on with a role the message brings (the string ends there) or one of
// `roles`: a template that writes another header itself says more than the format does.
bool HeadersAre(std::string_view source, std::string_view open, std::initializer_list<std::string_view> roles) {
  for (size_t at = source.find(open); at != std::string_view::npos; at = source.find(open, at + 1)) {
    const std::string_view rest = source.substr(at + open.size());
    const bool known =
        rest.starts_with('\'') || rest.starts_with('"') ||
        std::any_of(roles.begin(), roles.end(), [&](std::string_view role) {
          return rest.starts_with(role) && (rest.substr(role.size()).starts_with("<|end_header_id|>\n\n") ||
                                            rest.substr(role.size()).starts_with("\n"));
        });
    if (!known) return false;
  }
  return true;
}

}  // namespace

ChatFormat DetectChatFormat(const Tokenizer& tokenizer) {
  // Inside Jinja strings some checkpoints write line ends as \\n, others as they are.
  const std::string written = tokenizer.chat_template();
  if (const auto known = FindKnownTemplate(written)) return *known;
  const std::string source = ReplaceAll(written, "\\n", "\n");
  if (source.empty()) throw InvalidInput("the checkpoint has no chat template, so its chat format is not known");
  // Some Llama-2 files carry the prompt of a default that is switched off ("false == true").
  if (Has(source, "You are ") && !Has(source, "false == true")) {
    throw InvalidInput("the checkpoint's chat template has a system prompt of its own, which is not supported");
  }
  constexpr std::string_view kHeader = "<|start_header_id|>";
  constexpr std::string_view kImStart = "<|im_start|>";
  // That the template strips the messages and writes BOS belongs to the Llama formats.
  const bool llama = (Has(source, "trim") || Has(source, ".strip()")) && Has(source, "bos_token");
  const bool llama3 = llama && Has(source, kHeader) && Has(source, "<|eot_id|>");
  const bool llama2 =
      llama && Has(source, "bos_token + '[INST] '") && Has(source, "' [/INST]'") && Has(source, "<<SYS>>");
  const bool chat_ml = Has(source, kImStart) && Has(source, "<|im_end|>");
  if (llama3 && !llama2 && !chat_ml) {
    const bool dated = Has(source, "Cutting Knowledge Date: December 2023\n") && Has(source, "Today Date: ");
    if (dated && HeadersAre(source, kHeader, {"system", "user", "assistant", "ipython"})) return ChatFormat::kLlama31;
    if (!dated && HeadersAre(source, kHeader, {"user", "assistant"})) return ChatFormat::kLlama3;
  }
  if (llama2 && !llama3 && !chat_ml) return ChatFormat::kLlama2;
  if (chat_ml && !llama3 && !llama2 && HeadersAre(source, kImStart, {"user", "assistant"})) return ChatFormat::kChatMl;
  throw InvalidInput(
      "the checkpoint's chat template is none of the known formats (Llama-2, Llama-3, Llama-3.1, ChatML, Qwen2, "
      "Qwen2.5, Qwen3, Mistral, Mistral-v1, Mistral-v3, Mistral-v3-Tekken, Zephyr), and there is no interpreter for "
      "others; write the prompt yourself and use it "
      "without chat");
}

}  // namespace stoch
