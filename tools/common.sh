# Shared by tools/install, tools/run, tools/test and tools/lint: messages and the build. Sourced, not run.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

note() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() {
  note "error: $*"
  exit 1
}

# install_once: tools/install, which returns at once where nothing is missing.
install_once() { "$root/tools/install" || exit 1; }

# build PRESET TARGET [CMAKE_ARGS...]: configures where that was not done with these tools and arguments, then builds.
# One progress line on a terminal; otherwise silent unless something fails. All of it goes to stderr.
build() {
  local preset="$1" target="$2" dir="$root/build/$1" log facts
  shift 2
  log="$dir/configure.log"
  # A compiler that was upgraded, or an nvcc that appeared, must be looked at again.
  facts="$* | ${CXX:-c++} $("${CXX:-c++}" -dumpfullversion 2>&1) | ${CUDA_HOME:-} $(PATH="$PATH:/usr/local/cuda/bin" command -v nvcc || true)"
  if [ ! -f "$dir/build.ninja" ] || [ "$facts" != "$(cat "$dir/configured_with" 2>/dev/null)" ]; then
    note "configuring build/$preset (log: ${log#"$root"/})"
    mkdir -p "$dir"
    if ! (cd "$root" && cmake --preset "$preset" "$@") >"$log" 2>&1; then
      rm -f "$dir/configured_with"
      tail -n 40 "$log" >&2
      die "configuring failed"
    fi
    printf '%s\n' "$facts" >"$dir/configured_with"
    note "building (the first time takes minutes)"
  fi
  if [ -t 2 ]; then
    NINJA_STATUS='[%f/%t] ' ninja -C "$dir" "$target" >&2 || die "building failed"
  else
    ninja -C "$dir" --quiet "$target" >&2 || die "building failed"
  fi
}
