#include "symbols.h"

#include <dlfcn.h>
#include <elf.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <vector>

namespace ptx {
namespace {

using Names = std::map<uint64_t, std::string>;  // by address in the file

Names read_symbols(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)),
                                std::istreambuf_iterator<char>());
  Names names;
  Elf64_Ehdr header;
  if (bytes.size() < sizeof header) return names;
  std::memcpy(&header, bytes.data(), sizeof header);
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  std::memcpy(sections.data(), &bytes[header.e_shoff], sections.size() * sizeof(Elf64_Shdr));
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB) continue;
    const char* const texts = &bytes[sections[section.sh_link].sh_offset];
    for (uint64_t at = 0; at < section.sh_size; at += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      std::memcpy(&symbol, &bytes[section.sh_offset + at], sizeof symbol);
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_value != 0)
        names[symbol.st_value] = texts + symbol.st_name;
    }
  }
  return names;
}

}  // namespace

std::string name_of_function(const void* function) {
  static std::map<std::string, Names> files;
  Dl_info info;
  if (dladdr(function, &info) == 0) throw std::runtime_error("a function of no file");
  const std::string path = info.dli_fname;
  if (files.count(path) == 0) files[path] = read_symbols(path);
  const uint64_t offset =
      reinterpret_cast<uint64_t>(function) - reinterpret_cast<uint64_t>(info.dli_fbase);
  const auto found = files[path].find(offset);
  if (found == files[path].end()) throw std::runtime_error("no symbol of a kernel in " + path);
  return found->second;
}

}  // namespace ptx
