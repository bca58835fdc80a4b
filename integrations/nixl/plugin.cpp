/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin as NIXL loads it: an engine that turns NIXL's calls into transfers of nixl.h. Built
 * twice, as libplugin_ICMS.so and libplugin_DOCA_MEMOS.so (PLUGIN_BACKEND).
 *
 * Calls come on the application's threads, several at a time; an engine does not change after it
 * was made, and what does is in nixl.h, which locks. No exception leaves this file.
 *
 *   create -> registerMem ... -> prepXfer -> [postXfer -> checkXfer ...] ... -> releaseReqH
 *          -> deregisterMem ... -> destroy
 *
 * What goes wrong is said once, on standard error, as NIXL's own messages are; NIXL_LOG_LEVEL says
 * how much.
 */
#include "nixl/abi.hpp"

#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <strings.h>

#include "nixl/nixl.h"

namespace
{

using namespace abi;

constexpr nixl_backend backend = PLUGIN_BACKEND;
constexpr const char *backend_name = backend == NIXL_ICMS ? "ICMS" : "DOCA_MEMOS";

/* ---- messages ------------------------------------------------------------------------------- */

enum Level { level_error, level_warning, level_info };

bool level_shown(Level level)
{
    const char *wanted = secure_getenv("NIXL_LOG_LEVEL");

    if (level == level_error || wanted == nullptr)
        return level <= level_warning;
    if (strcasecmp(wanted, "INFO") == 0 || strcasecmp(wanted, "DEBUG") == 0 ||
        strcasecmp(wanted, "TRACE") == 0)
        return true;
    return level == level_warning && strcasecmp(wanted, "WARN") == 0;
}

__attribute__((format(printf, 2, 3))) void say(Level level, const char *format, ...)
{
    static const char *const names[] = {"error", "warning", "info"};
    char text[1024];
    va_list arguments;

    if (!level_shown(level))
        return;
    va_start(arguments, format);
    (void)std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    (void)std::fprintf(stderr, "icms: NIXL %s: %s: %s\n", backend_name, names[level], text);
}

/* Lets a message through once a second: when an enclosure is down every transfer fails, and NIXL
 * says so of each. */
class Quiet
{
    std::mutex lock_;
    std::chrono::steady_clock::time_point next_;
    std::uint64_t unsaid_ = 0;

  public:
    /* True when it may be said, and how many were not since the last one. */
    bool speak(std::uint64_t &out_unsaid)
    {
        std::lock_guard<std::mutex> guard(lock_);
        auto now = std::chrono::steady_clock::now();

        if (now < next_) {
            unsaid_++;
            return false;
        }
        next_ = now + std::chrono::seconds(1);
        out_unsaid = unsaid_;
        unsaid_ = 0;
        return true;
    }
};

/* ---- what NIXL holds for us ------------------------------------------------------------------ */

/* What NIXL knows as the metadata of memory or of an object. */
struct Registration {
    icms_key key;        /* of an object                    */
    nixl_memory *memory; /* of a GPU's memory, else nullptr */
};

const char *memory_name(Memory memory)
{
    static const char *const names[] = {"DRAM", "VRAM", "BLOCK", "OBJ", "FILE"};

    return memory >= 0 && memory < 5 ? names[memory] : "unknown memory";
}

/* ---- results -------------------------------------------------------------------------------- */

bool absent(const nixl_outcome &outcome)
{
    return outcome.err == ICMS_MISS &&
           (outcome.reason == ICMS_MISS_ABSENT || outcome.reason == ICMS_MISS_EVICTED);
}

/* Users of CMX know a key that is not there as an error of the backend. */
Status outcome_status(const nixl_outcome &outcome, bool store)
{
    if (outcome.err == ICMS_OK)
        return status_success;
    if (absent(outcome))
        return backend == NIXL_ICMS ? status_not_found : status_backend;
    if (outcome.err == ICMS_VALUE_SIZE)
        return store ? status_invalid : status_mismatch;
    return outcome.err == ICMS_CANCELED ? status_canceled : status_backend;
}

/* ---- the engine ----------------------------------------------------------------------------- */

/* What NIXL knows as a request's handle. */
struct Request {
    nixl_xfer *xfer;
    bool store;
    std::size_t count;
    std::atomic<bool> said; /* how it ended: once, however often it is asked */
};

class IcmsEngine final : public Engine
{
    nixl_tier *tier_;
    mutable Quiet quiet_;

    bool key_make(const NamedRange &range, icms_key &key) const;
    void outcome_say(const nixl_outcome &outcome, const Request &request) const;
    Status vram_register(const NamedRange &range, Registration &registration);
    Status lists_check(bool store, const List<RegisteredRange> &local,
                       const List<RegisteredRange> &remote) const;
    bool block_check(bool store, const RegisteredRange &local, const RegisteredRange &remote,
                     std::size_t index) const;

  public:
    /* Takes the tier. */
    IcmsEngine(const Creation &creation, nixl_tier *tier);
    ~IcmsEngine() override;
    bool supportsRemote() const override;
    bool supportsLocal() const override;
    bool supportsNotif() const override;
    Memories getSupportedMems() const override;
    Status registerMem(const NamedRange &range, const Memory &memory, void *&out) override;
    Status deregisterMem(void *registration) override;
    Status connect(const std::string &) override;
    Status disconnect(const std::string &) override;
    Status unloadMD(void *) override;
    Status prepXfer(const Operation &operation, const List<RegisteredRange> &local,
                    const List<RegisteredRange> &remote, const std::string &, void *&handle,
                    const void *) const override;
    Status postXfer(const Operation &operation, const List<RegisteredRange> &local,
                    const List<RegisteredRange> &remote, const std::string &, void *&handle,
                    const void *) const override;
    Status checkXfer(void *handle) const override;
    Status releaseReqH(void *handle) const override;
    Status loadLocalMD(void *registration, void *&out) override;
    Status queryMem(const List<NamedRange> &objects, Answers &answers) const override;
};

IcmsEngine::IcmsEngine(const Creation &creation, nixl_tier *tier) : Engine(creation), tier_(tier)
{
}

IcmsEngine::~IcmsEngine()
{
    nixl_tier_close(&tier_);
}

bool IcmsEngine::supportsRemote() const
{
    return false;
}

bool IcmsEngine::supportsLocal() const
{
    return true;
}

bool IcmsEngine::supportsNotif() const
{
    return false;
}

Memories IcmsEngine::getSupportedMems() const
{
    return {memory_object, memory_dram, memory_vram};
}

Status IcmsEngine::connect(const std::string &)
{
    return status_success;
}

Status IcmsEngine::disconnect(const std::string &)
{
    return status_success;
}

/* ---- registrations -------------------------------------------------------------------------- */

bool IcmsEngine::key_make(const NamedRange &range, icms_key &key) const
{
    icms_err err = nixl_key_make(nixl_tier_settings(tier_)->key_form, range.name.data(),
                                 range.name.size(), range.device, &key);

    if (err != ICMS_OK)
        say(level_error,
            "the object '%.80s' has no key: a name has up to 32 hex digits, two a byte, or up to "
            "16 bytes of any kind; key_form=name of the backend ICMS takes names of any length",
            range.name.c_str());
    return err == ICMS_OK;
}

/* Memory of a GPU: libicms has to know it. */
Status IcmsEngine::vram_register(const NamedRange &range, Registration &registration)
{
    char why[512] = "";
    icms_err err;

    if (nixl_tier_settings(tier_)->absent_is_zeros) {
        say(level_error, "VRAM cannot be registered with ignore_read_not_found: zeros are written "
                         "to DRAM alone; leave it false");
        return status_not_supported;
    }
    err = nixl_memory_register(tier_, reinterpret_cast<void *>(range.address), range.bytes, why,
                               sizeof(why), &registration.memory);
    if (err == ICMS_OK)
        return status_success;
    say(level_error, "VRAM: %s", why[0] != '\0' ? why : icms_err_text(err));
    return err == ICMS_UNSUPPORTED ? status_not_supported : status_backend;
}

Status IcmsEngine::registerMem(const NamedRange &range, const Memory &memory, void *&out)
{
    Status status = status_success;
    auto registration = std::unique_ptr<Registration>(new (std::nothrow) Registration{});

    if (registration == nullptr)
        return status_backend;
    if (memory != memory_dram && memory != memory_vram && memory != memory_object) {
        say(level_error, "%s cannot be registered: only DRAM, VRAM and OBJ can",
            memory_name(memory));
        return status_not_supported;
    }
    if (memory == memory_vram)
        status = vram_register(range, *registration);
    if (status != status_success)
        return status;
    if (memory == memory_object && !key_make(range, registration->key))
        return status_invalid;
    out = registration.release();
    return status_success;
}

Status IcmsEngine::deregisterMem(void *handle)
{
    std::unique_ptr<Registration> registration(static_cast<Registration *>(handle));

    if (registration == nullptr || nixl_memory_unregister(tier_, &registration->memory) == ICMS_OK)
        return status_success;
    say(level_error,
        "VRAM: copies of transfers that timed out are still with the driver; the memory "
        "may be written to until the backend is closed");
    return status_backend;
}

Status IcmsEngine::loadLocalMD(void *registration, void *&out)
{
    out = registration;
    return status_success;
}

/* The registration lives until deregisterMem. */
Status IcmsEngine::unloadMD(void *)
{
    return status_success;
}

/* ---- transfers ------------------------------------------------------------------------------ */

bool IcmsEngine::block_check(bool store, const RegisteredRange &local,
                             const RegisteredRange &remote, std::size_t index) const
{
    std::uint64_t most = nixl_tier_value_bytes_max(tier_);

    if (remote.registration == nullptr || remote.address != 0)
        say(level_error,
            "block %zu: the offset in an object is %" PRIuPTR
            ": objects are stored and loaded whole",
            index, remote.address);
    else if (local.bytes != remote.bytes)
        say(level_error, "block %zu: %zu bytes of memory and %zu of the object", index, local.bytes,
            remote.bytes);
    else if (local.bytes == 0 || (store && local.bytes > most))
        say(level_error, "block %zu: %zu bytes: a value has 1 to %" PRIu64, index, local.bytes,
            most);
    else
        return true;
    return false;
}

Status IcmsEngine::lists_check(bool store, const List<RegisteredRange> &local,
                               const List<RegisteredRange> &remote) const
{
    if ((local.memory != memory_dram && local.memory != memory_vram) ||
        remote.memory != memory_object) {
        say(level_error, "a transfer from %s to %s: it goes from DRAM or VRAM to OBJ alone",
            memory_name(local.memory), memory_name(remote.memory));
        return status_not_supported;
    }
    if (local.ranges.empty() || local.ranges.size() != remote.ranges.size()) {
        say(level_error,
            "a transfer of %zu buffers and %zu objects: there is one buffer for each object, and "
            "at least one",
            local.ranges.size(), remote.ranges.size());
        return status_invalid;
    }
    for (std::size_t i = 0; i < local.ranges.size(); i++)
        if (!block_check(store, local.ranges[i], remote.ranges[i], i))
            return status_invalid;
    return status_success;
}

Status IcmsEngine::prepXfer(const Operation &operation, const List<RegisteredRange> &local,
                            const List<RegisteredRange> &remote, const std::string &, void *&handle,
                            const void *) const
{
    bool store = operation == operation_write;
    std::size_t count = local.ranges.size();
    std::unique_ptr<Request> request;
    Status status = lists_check(store, local, remote);

    if (status != status_success)
        return status;
    request.reset(new (std::nothrow) Request{nullptr, store, count, false});
    if (request != nullptr)
        request->xfer = nixl_xfer_new(tier_, store, count);
    if (request == nullptr || request->xfer == nullptr) {
        say(level_error, "out of memory for a transfer of %zu blocks", count);
        return status_backend;
    }
    handle = request.release();
    return status_success;
}

Status IcmsEngine::postXfer(const Operation &operation, const List<RegisteredRange> &local,
                            const List<RegisteredRange> &remote, const std::string &, void *&handle,
                            const void *) const
{
    auto *request = static_cast<Request *>(handle);
    Status status = lists_check(operation == operation_write, local, remote);
    icms_err err;

    if (status != status_success)
        return status;
    if (request->store != (operation == operation_write) || request->count != local.ranges.size())
        return status_mismatch;
    if (nixl_xfer_under_way(request->xfer))
        return status_repost_active;
    for (std::size_t i = 0; i < request->count; i++)
        nixl_xfer_set(request->xfer, i,
                      &static_cast<Registration *>(remote.ranges[i].registration)->key,
                      reinterpret_cast<void *>(local.ranges[i].address), local.ranges[i].bytes);
    request->said = false;
    err = nixl_xfer_post(request->xfer);
    if (err == ICMS_OK)
        return status_in_progress;
    say(level_error, "a transfer cannot be posted: %s", icms_err_text(err));
    return status_not_allowed;
}

void IcmsEngine::outcome_say(const nixl_outcome &outcome, const Request &request) const
{
    const char *what = request.store ? "WRITE" : "READ";
    std::uint64_t unsaid = 0;

    if (outcome.err == ICMS_OK || (!absent(outcome) && !quiet_.speak(unsaid)))
        return;
    if (!request.store && outcome.err == ICMS_VALUE_SIZE)
        say(level_warning,
            "READ: %zu of %zu blocks failed: block %zu has %" PRIu64
            " bytes, which is not what was asked for",
            outcome.failed, request.count, outcome.block, outcome.bytes);
    else
        say(absent(outcome) ? level_info : level_warning,
            "%s: %zu of %zu blocks failed, block %zu: %s%s%s", what, outcome.failed, request.count,
            outcome.block, icms_err_text(outcome.err), outcome.err == ICMS_MISS ? ": " : "",
            outcome.err == ICMS_MISS ? icms_miss_name(outcome.reason) : "");
    if (unsaid != 0)
        say(level_warning, "%" PRIu64 " transfers before it failed, too", unsaid);
}

Status IcmsEngine::checkXfer(void *handle) const
{
    auto *request = static_cast<Request *>(handle);
    nixl_outcome outcome;

    if (!nixl_xfer_over(request->xfer, &outcome))
        return status_in_progress;
    if (!request->said.exchange(true))
        outcome_say(outcome, *request);
    return outcome_status(outcome, request->store);
}

Status IcmsEngine::releaseReqH(void *handle) const
{
    auto *request = static_cast<Request *>(handle);

    if (request == nullptr)
        return status_success;
    nixl_xfer_free(&request->xfer);
    delete request;
    return status_success;
}

/* ---- queries -------------------------------------------------------------------------------- */

Status IcmsEngine::queryMem(const List<NamedRange> &objects, Answers &answers) const
try {
    std::size_t count = objects.ranges.size();
    std::vector<std::uint8_t> found(count, 1);
    std::vector<icms_key> keys(count);
    icms_err err = ICMS_OK;

    if (objects.memory != memory_object) {
        say(level_error, "%s cannot be queried: only OBJ can", memory_name(objects.memory));
        return status_not_supported;
    }
    for (std::size_t i = 0; i < count; i++)
        if (!key_make(objects.ranges[i], keys[i]))
            return status_invalid;
    if (!nixl_tier_settings(tier_)->query_assume)
        err = nixl_tier_query(tier_, keys.data(), count, found.data());
    if (err != ICMS_OK) {
        say(level_warning, "query: %s", icms_err_text(err));
        return status_backend;
    }
    answers.reserve(answers.size() + count);
    for (std::size_t i = 0; i < count; i++)
        answers.push_back(found[i] != 0 ? std::optional<Params>(Params()) : std::nullopt);
    return status_success;
} catch (const std::bad_alloc &) {
    return status_backend;
}

/* ---- the table that the core gets ----------------------------------------------------------- */

/* What libicms says: of an agent that is not there, or has come, and of memory of a GPU. */
void log_say(void *, const char *line)
{
    say(level_warning, "%s", line);
}

Engine *create(const Creation *creation)
try {
    std::vector<nixl_param> params;
    nixl_settings settings;
    nixl_tier *tier = nullptr;
    char why[512] = "";
    icms_err err;

    for (const auto &[name, value] : *creation->params)
        params.push_back({name.c_str(), value.c_str()});
    err = nixl_settings_read(backend, params.data(), params.size(), why, sizeof(why), &settings);
    if (err == ICMS_OK)
        err = nixl_tier_open(&settings, log_say, why, sizeof(why), &tier);
    if (err != ICMS_OK) {
        say(level_error, "%s", why[0] != '\0' ? why : icms_err_text(err));
        return nullptr;
    }
    try {
        return new IcmsEngine(*creation, tier);
    } catch (...) {
        nixl_tier_close(&tier);
        throw;
    }
} catch (const std::exception &error) {
    say(level_error, "%s", error.what());
    return nullptr;
}

void destroy(Engine *engine)
{
    delete engine;
}

const char *name()
{
    return backend_name;
}

Params defaults()
{
    Params params;
    nixl_param param;

    for (std::size_t i = 0; nixl_settings_default(backend, i, &param); i++)
        params[param.name] = param.value;
    return params;
}

Memories memories()
{
    return {memory_object, memory_dram, memory_vram};
}

} // namespace

extern "C" __attribute__((visibility("default"))) abi::Plugin *nixl_plugin_init()
{
    static abi::Plugin plugin = {
        abi::plugin_api_version, create, destroy, name, icms_version, defaults, memories};

    char why[512];

    if (nixl_core_check(__builtin_return_address(0), why, sizeof(why)) == ICMS_OK)
        return &plugin;
    say(level_error, "%s", why);
    return nullptr;
}

extern "C" __attribute__((visibility("default"))) void nixl_plugin_fini()
{
}
