/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nixl/abi.hpp: what a NIXL storage plugin and NIXL's core share in memory, in our own words.
 *
 * The core loads libplugin_NAME.so, calls nixl_plugin_init, and gets a table of functions. One of
 * them makes an engine: an object whose virtual functions the core calls by their place in the
 * virtual table, and of which it reads the first fields itself. So the order of the functions, and
 * the order and types of the fields, are the interface; the names of types are not, and differ from
 * NIXL's. Types of libstdc++ cross as they are (C++20, the ABI with std::__cxx11::string).
 *
 * NIXL has no number for this layout: its plugin API version was 1 before and after it changed
 * last, with 1.0.0. tests/test_abi.py compares the table below with each NIXL that is tested, and
 * core.c compares it with the NIXL that loads the plugin.
 */
#ifndef NIXL_ABI_HPP
#define NIXL_ABI_HPP

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace abi
{

constexpr int plugin_api_version = 1;

enum Memory : int { memory_dram = 0, memory_vram = 1, memory_object = 3 };

enum Operation : int { operation_read = 0, operation_write = 1 };

enum Status : int {
    status_in_progress = 1,
    status_success = 0,
    status_invalid = -2,
    status_backend = -3,
    status_not_found = -4,
    status_mismatch = -5,
    status_not_allowed = -6,
    status_repost_active = -7,
    status_not_supported = -9,
    status_canceled = -11,
};

using Params = std::unordered_map<std::string, std::string>;
using Memories = std::vector<Memory>;
using Answers = std::vector<std::optional<Params>>;

/* Memory of the process or of a GPU, or an object: then the address is an offset in it. */
struct Range {
    std::uintptr_t address;
    std::size_t bytes;
    std::uint64_t device; /* of an object: its number; of a GPU: the address says which */
};

struct NamedRange : Range {
    std::string name; /* of an object */
};

struct RegisteredRange : Range {
    void *registration; /* what register_memory gave for it */
};

/* A list that the core owns; it is only read here. */
template <class Kind> struct List {
    const void *table; /* its virtual functions, which are not called */
    Memory memory;     /* of all of them                               */
    std::vector<Kind> ranges;
};

/* What a backend is created with. */
struct Creation {
    std::string agent;   /* name of the agent                     */
    std::string backend; /* name under which the plugin is loaded */
    Params *params;
    bool thread_wanted;
    std::uint64_t thread_delay_us;
    int locking;
    bool telemetry;
};

/* The fields that the core reads, and its virtual functions in their order. Their names are those
 * of NIXL, as the test compares them. Those that only other kinds of plugins have answer that they
 * are not supported. */
class Engine
{
    std::string backend_; /* read by the core */
    Params params_;       /* the same         */
    std::vector<char> events_;
    std::mutex events_lock_;
    bool failed_ = false; /* never: an engine that fails is not made */
    const std::string agent_;
    const bool telemetry_;

  public:
    explicit Engine(const Creation &creation)
        : backend_(creation.backend), params_(*creation.params), agent_(creation.agent),
          telemetry_(creation.telemetry)
    {
    }
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;
    virtual ~Engine() = default;

    virtual bool supportsRemote() const = 0;
    virtual bool supportsLocal() const = 0;
    virtual bool supportsNotif() const = 0;
    virtual Memories getSupportedMems() const = 0;
    virtual Status registerMem(const NamedRange &range, const Memory &memory, void *&out) = 0;
    virtual Status deregisterMem(void *registration) = 0;
    virtual Status connect(const std::string &agent) = 0;
    virtual Status disconnect(const std::string &agent) = 0;
    virtual Status unloadMD(void *registration) = 0;
    virtual Status prepXfer(const Operation &operation, const List<RegisteredRange> &local,
                            const List<RegisteredRange> &remote, const std::string &agent,
                            void *&handle, const void *arguments) const = 0;
    virtual Status postXfer(const Operation &operation, const List<RegisteredRange> &local,
                            const List<RegisteredRange> &remote, const std::string &agent,
                            void *&handle, const void *arguments) const = 0;
    virtual Status checkXfer(void *handle) const = 0;
    virtual Status releaseReqH(void *handle) const = 0;
    virtual Status prepMemView(const List<NamedRange> &, void *&, const void *) const
    {
        return status_not_supported;
    }
    virtual Status prepMemView(const List<RegisteredRange> &, void *&, const void *) const
    {
        return status_not_supported;
    }
    virtual void releaseMemView(void *) const
    {
    }
    virtual Status getPublicData(const void *, std::string &) const
    {
        return status_not_supported;
    }
    virtual Status getConnInfo(std::string &) const
    {
        return status_not_supported;
    }
    virtual Status loadRemoteConnInfo(const std::string &, const std::string &)
    {
        return status_not_supported;
    }
    virtual Status loadRemoteMD(const NamedRange &, const Memory &, const std::string &, void *&)
    {
        return status_not_supported;
    }
    virtual Status loadLocalMD(void *registration, void *&out) = 0;
    virtual Status getNotifs(std::vector<std::pair<std::string, std::string>> &)
    {
        return status_not_supported;
    }
    virtual Status genNotif(const std::string &, const std::string &) const
    {
        return status_not_supported;
    }
    virtual Status queryMem(const List<NamedRange> &objects, Answers &answers) const = 0;
    virtual Status estimateXferCost(const Operation &, const List<RegisteredRange> &,
                                    const List<RegisteredRange> &, const std::string &,
                                    void *const &, std::int64_t &, std::int64_t &, int &,
                                    const void *) const
    {
        return status_not_supported;
    }
};

/* What nixl_plugin_init returns. */
struct Plugin {
    int version; /* plugin_api_version */
    Engine *(*create)(const Creation *creation);
    void (*destroy)(Engine *engine);
    const char *(*name)();
    const char *(*version_text)();
    Params (*defaults)();
    Memories (*memories)();
};

static_assert(sizeof(Range) == 24 && sizeof(NamedRange) == 56 && sizeof(RegisteredRange) == 32);
static_assert(sizeof(std::string) == 32 && sizeof(Params) == 56 && sizeof(Memories) == 24);

} // namespace abi

#endif
