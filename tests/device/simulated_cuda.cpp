// Two simulated CUDA devices for a torch that was built for the CPU.
//
// It registers the real CUDA dispatch key, device guard, hooks and allocators, so tensors answer
// `is_cuda`, and backwards run in autograd's own threads. Every kernel runs at once on the CPU, on the
// same memory. What a GPU does later is kept on a timeline: streams are busy until some time, events are
// reached at some time, and a non-blocking copy into pinned memory arrives then and not before.
//
// Counted are launches, copies, events, and each time the host waits for a device. A host that waits
// while a CUDA graph is captured gets the error that CUDA gives. Streams that use the same memory without
// an order between them are reported as races.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;

constexpr auto ON_DEVICE = c10::DeviceType::CUDA;
constexpr auto ON_HOST = c10::DeviceType::CPU;
constexpr int DEVICES = 2;
constexpr int64_t COPY_NS = 1000;
constexpr size_t ROUNDED = 512;
constexpr size_t MEMORY = size_t(8) << 30;
constexpr size_t LARGEST_SMALL = 1 << 20;
constexpr int64_t SMALL_SEGMENT = 2 << 20;
constexpr int64_t LARGE_SEGMENT = 20 << 20;

std::mutex mutex_;

// ---------------------------------------------------------------------------------- settings

std::atomic<bool> capturing{false};
std::atomic<bool> without_float64{false};
std::atomic<int64_t> kernel_ns{0};

thread_local int current_device = 0;
thread_local int64_t current_streams[DEVICES] = {0, 0};
std::atomic<int64_t> next_stream{1};

struct OnDevice {
  int before = current_device;
  explicit OnDevice(int device) {
    if (device >= 0) current_device = device;
  }
  ~OnDevice() { current_device = before; }
};

// ---------------------------------------------------------------------------------- counters

enum class Kind { LAUNCH, COPY, EVENT, QUERY, WAIT, FORBIDDEN, RACE };
const char* NAMES[] = {"launch", "copy", "event", "query", "wait", "forbidden", "race"};

std::atomic<bool> counting{false};
std::map<std::pair<std::string, std::string>, int64_t> counts;
py::object* listener = nullptr;

// The listener looks where in the Python program the call comes from.
void count(Kind kind, const std::string& what) {
  if (!counting) return;
  std::string name = NAMES[static_cast<int>(kind)];
  {
    std::lock_guard<std::mutex> guard(mutex_);
    counts[{name, what}]++;
  }
  if (listener == nullptr) return;
  py::gil_scoped_acquire gil;
  // Another thread may have stopped counting while this one waited for the GIL.
  if (listener != nullptr) (*listener)(name, what);
}

void refuse_while_capturing(const std::string& what) {
  if (!capturing) return;
  count(Kind::FORBIDDEN, what);
  TORCH_CHECK(false, "CUDA error: operation not permitted when stream is capturing (", what, ")");
}

// ---------------------------------------------------------------------------------- timeline

using Stream = std::pair<int, int64_t>;  // device, number
using Clock = std::map<Stream, uint64_t>;  // how much of each stream's work came before

struct LateCopy {
  int64_t arrives;
  void* target;
  Tensor value;
};

struct Memory {  // who has used a block of device memory
  Stream home;
  std::optional<std::pair<Stream, uint64_t>> written;
  std::map<Stream, uint64_t> reads;
  std::set<Stream> recorded;
};

std::map<Stream, int64_t> busy_until;
std::vector<LateCopy> late_copies;
std::map<Stream, Clock> stream_clocks;
Clock host_clock;
std::map<const void*, Memory> memories;

int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

Stream stream_of(int device) { return {device, current_streams[device]}; }

int64_t end_of(Stream stream) {
  std::lock_guard<std::mutex> guard(mutex_);
  return busy_until[stream];
}

void merge(Clock& into, const Clock& other) {
  for (auto& [stream, amount] : other) into[stream] = std::max(into[stream], amount);
}

void deliver(int64_t until) {
  std::vector<LateCopy> due;
  std::lock_guard<std::mutex> guard(mutex_);
  auto end = std::partition(late_copies.begin(), late_copies.end(), [&](auto& copy) { return copy.arrives > until; });
  due.assign(end, late_copies.end());
  late_copies.erase(end, late_copies.end());
  // Under the lock: another thread may free the target.
  for (auto& copy : due) std::memcpy(copy.target, copy.value.data_ptr(), copy.value.nbytes());
}

void sleep_until(int64_t time) {
  std::optional<py::gil_scoped_release> released;
  if (PyGILState_Check()) released.emplace();
  auto left = time - now();
  if (left > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left));
}

// The host waits for a stream: everything that it has done is known from here on.
void wait_for(Stream stream, const std::string& why) {
  refuse_while_capturing(why);
  count(Kind::WAIT, why);
  auto end = end_of(stream);
  sleep_until(end);
  {
    std::lock_guard<std::mutex> guard(mutex_);
    merge(host_clock, stream_clocks[stream]);
  }
  deliver(std::max(end + COPY_NS, now()));
}

std::string text(Stream stream) {
  return "stream " + std::to_string(stream.second) + " of cuda:" + std::to_string(stream.first);
}

// Each of two streams waits for what the other has done.
void join(Stream one, Stream other) {
  std::lock_guard<std::mutex> guard(mutex_);
  merge(stream_clocks[one], stream_clocks[other]);
  merge(stream_clocks[other], stream_clocks[one]);
  busy_until[one] = busy_until[other] = std::max(busy_until[one], busy_until[other]);
}

// A piece of work on a stream; what it does to memory without an order is a race.
void work(int device, const std::vector<const void*>& reads, const std::vector<const void*>& writes) {
  std::vector<std::string> races;
  auto stream = stream_of(device);
  {
    std::lock_guard<std::mutex> guard(mutex_);
    auto& clock = stream_clocks[stream];
    merge(clock, host_clock);
    auto number = ++clock[stream];
    auto is_open = [&](Stream other, uint64_t amount) { return other != stream && clock[other] < amount; };
    auto check_writer = [&](const Memory& memory, const char* verb) {
      if (memory.written && is_open(memory.written->first, memory.written->second))
        races.push_back(text(stream) + " " + verb + " what " + text(memory.written->first) + " may still write");
    };
    for (auto* pointer : reads) {
      auto found = memories.find(pointer);
      if (found == memories.end()) continue;
      check_writer(found->second, "reads");
      found->second.reads[stream] = number;
    }
    for (auto* pointer : writes) {
      auto found = memories.find(pointer);
      if (found == memories.end()) continue;
      check_writer(found->second, "writes");
      for (auto& [other, amount] : found->second.reads)
        if (is_open(other, amount)) races.push_back(text(stream) + " writes what " + text(other) + " may still read");
      found->second.written = {stream, number};
    }
    if (kernel_ns) busy_until[stream] = std::max(busy_until[stream], now()) + kernel_ns;
  }
  for (auto& race : races) count(Kind::RACE, race);
}

// ---------------------------------------------------------------------------------- memory

struct DeviceMemory final : c10::DeviceAllocator {
  struct Block {
    size_t bytes;
    int device;
  };
  std::map<void*, Block> blocks;
  c10::CachingDeviceAllocator::DeviceStats stats[DEVICES];

  static DeviceMemory& get() {
    static auto* memory = new DeviceMemory();
    return *memory;
  }
  static size_t rounded(size_t bytes) { return (bytes + ROUNDED - 1) / ROUNDED * ROUNDED; }

  // Statistics are kept for all memory (0), for small blocks (1) and for large ones (2), as torch does.
  void change(int device, size_t bytes, bool is_freed) {
    auto& its = stats[device];
    int64_t size = rounded(bytes), segment = bytes <= LARGEST_SMALL ? SMALL_SEGMENT : LARGE_SEGMENT;
    auto move = [&](auto& stat, int64_t amount) { is_freed ? stat.decrease(amount) : stat.increase(amount); };
    int pool = bytes <= LARGEST_SMALL ? 1 : 2;
    for (int one : {0, pool}) {
      move(its.allocated_bytes[one], size);
      move(its.active_bytes[one], size);
      move(its.requested_bytes[one], bytes);
      move(its.allocation[one], 1);
      move(its.active[one], 1);
    }
    int64_t missing = its.allocated_bytes[pool].current - its.reserved_bytes[pool].current;
    int64_t more = missing > 0 ? (missing + segment - 1) / segment : 0;
    for (int one : {0, pool}) {
      its.reserved_bytes[one].increase(more * segment);
      its.segment[one].increase(more);
    }
    for (int one : {0, pool}) {
      auto& split = its.inactive_split_bytes[one];
      int64_t change = its.reserved_bytes[one].current - its.active_bytes[one].current - split.current;
      change > 0 ? split.increase(change) : split.decrease(-change);
    }
  }

  c10::DataPtr allocate(size_t bytes) override {
    int device = current_device;
    if (bytes > MEMORY) {
      std::lock_guard<std::mutex> guard(mutex_);
      stats[device].num_alloc_retries++;
      stats[device].num_ooms++;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes >> 30, " GiB.");
    }
    void* pointer = bytes ? c10::alloc_cpu(bytes) : nullptr;
    if (pointer != nullptr) {
      std::lock_guard<std::mutex> guard(mutex_);
      blocks[pointer] = {bytes, device};
      memories[pointer] = Memory{stream_of(device), std::nullopt, {}, {}};
      change(device, bytes, false);
    }
    return {pointer, pointer, &release, Device(ON_DEVICE, device)};
  }
  static void release(void* pointer) {
    std::optional<Stream> reader;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      auto found = get().blocks.find(pointer);
      if (found == get().blocks.end()) return;
      get().change(found->second.device, found->second.bytes, true);
      auto& memory = memories[pointer];
      Clock known = stream_clocks[memory.home];
      merge(known, host_clock);
      for (auto& [stream, amount] : memory.reads)
        if (stream != memory.home && !memory.recorded.count(stream) && known[stream] < amount) reader = stream;
      memories.erase(pointer);
      get().blocks.erase(found);
    }
    if (reader && counting) {
      std::lock_guard<std::mutex> guard(mutex_);
      counts[{"race", "freed while " + text(*reader) + " may still read it, without record_stream"}]++;
    }
    c10::free_cpu(pointer);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    std::lock_guard<std::mutex> guard(mutex_);
    return stats[device];
  }
  void resetAccumulatedStats(DeviceIndex device) override { stats[device].allocated_bytes[0].reset_accumulated(); }
  void resetPeakStats(DeviceIndex device) override {
    std::lock_guard<std::mutex> guard(mutex_);
    auto& its = stats[device];
    for (auto* amounts : {&its.allocated_bytes, &its.reserved_bytes, &its.active_bytes, &its.requested_bytes,
                          &its.inactive_split_bytes, &its.allocation, &its.segment, &its.active})
      for (auto& amount : *amounts) amount.reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex) override { return {MEMORY, MEMORY}; }
};

struct PinnedMemory final : c10::Allocator {
  std::map<uintptr_t, size_t> blocks;

  static PinnedMemory& get() {
    static auto* memory = new PinnedMemory();
    return *memory;
  }
  c10::DataPtr allocate(size_t bytes) override {
    refuse_while_capturing("allocate pinned memory");
    void* pointer = bytes ? c10::alloc_cpu(bytes) : nullptr;
    std::lock_guard<std::mutex> guard(mutex_);
    if (pointer != nullptr) blocks[reinterpret_cast<uintptr_t>(pointer)] = bytes;
    return {pointer, pointer, &release, Device(ON_HOST)};
  }
  static void release(void* pointer) {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      auto found = get().blocks.find(reinterpret_cast<uintptr_t>(pointer));
      if (found != get().blocks.end()) {
        // A GPU's allocator keeps a block until the copies into it are over; here they are dropped with it.
        auto is_inside = [&](const LateCopy& copy) {
          auto target = reinterpret_cast<uintptr_t>(copy.target);
          return found->first <= target && target < found->first + found->second;
        };
        late_copies.erase(std::remove_if(late_copies.begin(), late_copies.end(), is_inside), late_copies.end());
        get().blocks.erase(found);
      }
    }
    c10::free_cpu(pointer);
  }
  bool has(const void* pointer) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto address = reinterpret_cast<uintptr_t>(pointer);
    auto after = blocks.upper_bound(address);
    return after != blocks.begin() && address < std::prev(after)->first + std::prev(after)->second;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

// ---------------------------------------------------------------------------------- streams, events

struct Event {
  int64_t reached;
  Clock clock;
};

Event* as_event(void* event) { return static_cast<Event*>(event); }
Stream key_of(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  static int index_of(Device device) { return device.index() < 0 ? current_device : device.index(); }
  static c10::Stream stream(int device, int64_t number) {
    return c10::Stream(c10::Stream::UNSAFE, Device(ON_DEVICE, device), number);
  }

  c10::DeviceType type() const override { return ON_DEVICE; }
  DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  Device getDevice() const override { return Device(ON_DEVICE, current_device); }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < DEVICES, "CUDA error: invalid device ordinal");
    current_device = index_of(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override { current_device = index_of(device); }
  Device exchangeDevice(Device device) const override {
    Device before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Stream getStream(Device device) const override { return stream(index_of(device), current_streams[index_of(device)]); }
  c10::Stream getDefaultStream(Device device) const override { return stream(index_of(device), 0); }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override { return stream(index_of(device), next_stream++); }
  c10::Stream getNewStream(Device device, int) const override { return stream(index_of(device), next_stream++); }
  c10::Stream exchangeStream(c10::Stream given) const override {
    auto before = getStream(given.device());
    current_streams[given.device_index()] = given.id();
    return before;
  }
  bool isStreamCapturing(const c10::Stream&) const override { return capturing; }
  bool queryStream(const c10::Stream& given) const override { return now() >= end_of(key_of(given)); }
  void synchronizeStream(const c10::Stream& given) const override { wait_for(key_of(given), "synchronize a stream"); }
  void synchronizeDevice(const DeviceIndex device) const override {
    refuse_while_capturing("synchronize a device");
    count(Kind::WAIT, "synchronize a device");
    int64_t end = 0;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      for (auto& [stream, time] : busy_until)
        if (stream.first == device) end = std::max(end, time);
      for (auto& [stream, clock] : stream_clocks)
        if (stream.first == device) merge(host_clock, clock);
    }
    sleep_until(end);
    deliver(std::max(end + COPY_NS, now()));
  }

  void record(void** event, const c10::Stream& given, const DeviceIndex, const c10::EventFlag) const override {
    count(Kind::EVENT, "record");
    if (*event == nullptr) *event = new Event();
    auto stream = key_of(given);
    std::lock_guard<std::mutex> guard(mutex_);
    merge(stream_clocks[stream], host_clock);
    *as_event(*event) = {std::max(now(), busy_until[stream]), stream_clocks[stream]};
  }
  void block(void* event, const c10::Stream& given) const override {
    if (event == nullptr) return;
    auto stream = key_of(given);
    std::lock_guard<std::mutex> guard(mutex_);
    busy_until[stream] = std::max(busy_until[stream], as_event(event)->reached);
    merge(stream_clocks[stream], as_event(event)->clock);
  }
  bool queryEvent(void* event) const override {
    refuse_while_capturing("query an event");
    count(Kind::QUERY, "query");
    if (event == nullptr) return true;
    if (now() < as_event(event)->reached + COPY_NS) return false;
    reach(as_event(event));
    return true;
  }
  void synchronizeEvent(void* event) const override {
    refuse_while_capturing("synchronize an event");
    count(Kind::WAIT, "synchronize an event");
    if (event == nullptr) return;
    sleep_until(as_event(event)->reached);
    reach(as_event(event));
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete as_event(event); }
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    return (as_event(second)->reached - as_event(first)->reached) / 1e6;
  }
  static void reach(Event* event) {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      merge(host_clock, event->clock);
    }
    deliver(std::max(event->reached + COPY_NS, now()));
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

const std::vector<at::Generator>& generators() {
  static auto* all = new std::vector<at::Generator>{at::detail::createCPUGenerator(1), at::detail::createCPUGenerator(2)};
  return *all;
}

}  // namespace

namespace at {
struct SimulatedHooks final : CUDAHooksInterface {
  explicit SimulatedHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return DEVICES; }
  DeviceIndex deviceCount() const override { return DEVICES; }
  DeviceIndex current_device() const override { return ::current_device; }
  DeviceIndex getCurrentDevice() const override { return ::current_device; }
  void setCurrentDevice(DeviceIndex device) const override { ::current_device = device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    auto before = ::current_device;
    if (device >= 0) ::current_device = device;
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return exchangeDevice(device); }
  void deviceSynchronize(DeviceIndex device) const override { Guard().synchronizeDevice(device); }
  const Generator& getDefaultGenerator(DeviceIndex device) const override {
    return generators()[device < 0 ? ::current_device : device];
  }
  Generator getNewGenerator(DeviceIndex) const override { return at::detail::createCPUGenerator(3); }
  Device getDeviceFromPtr(void* pointer) const override { return Device(ON_DEVICE, DeviceMemory::get().blocks[pointer].device); }
  bool isPinnedPtr(const void* pointer) const override { return PinnedMemory::get().has(pointer); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedMemory::get(); }
  c10::Allocator* getCUDADeviceAllocator() const override { return &DeviceMemory::get(); }
};
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, SimulatedHooks)
}  // namespace at

namespace {

// ---------------------------------------------------------------------------------- kernels

bool is_on_device(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == ON_DEVICE; }

void check_dtype(at::ScalarType dtype) {
  bool is_wide = dtype == at::kDouble || dtype == at::kComplexDouble;
  TORCH_CHECK_TYPE(!(without_float64 && is_wide),
                   "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
                   "Please use float32 instead.");
}

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<Device> device,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  OnDevice on(device ? device->index() : -1);
  auto its = dtype.value_or(at::get_default_dtype_as_scalartype());
  check_dtype(its);
  return at::detail::empty_generic(size, &DeviceMemory::get(), c10::DispatchKeySet(c10::DispatchKey::CUDA), its, format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  OnDevice on(device ? device->index() : -1);
  auto its = dtype.value_or(at::get_default_dtype_as_scalartype());
  check_dtype(its);
  return at::detail::empty_strided_generic(size, stride, &DeviceMemory::get(), c10::DispatchKeySet(c10::DispatchKey::CUDA), its);
}

// A CPU tensor on the memory of one on a device, which stays alive with it.
Tensor on_host(const Tensor& tensor) {
  auto storage = tensor.storage();
  auto* keeps = new c10::Storage(storage);
  auto drop = [](void* kept) { delete static_cast<c10::Storage*>(kept); };
  c10::DataPtr data(const_cast<void*>(storage.data()), keeps, drop, Device(ON_HOST));
  auto shared = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(data),
                                                      c10::GetAllocator(ON_HOST), false);
  auto alias = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(shared), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* implementation = alias.unsafeGetTensorImpl();
  implementation->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) alias._set_conj(true);
  if (tensor.is_neg()) alias._set_neg(true);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) implementation->set_wrapped_number(true);
  return alias;
}

void copy_on_host(Tensor to, const Tensor& from) {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  to.copy_(from);
}

Tensor to_device(const Tensor& tensor, int device) {
  if (tensor.layout() != at::kStrided) return tensor;
  check_dtype(tensor.scalar_type());
  auto made = empty_strided(tensor.sizes(), tensor.strides(), tensor.scalar_type(), {}, Device(ON_DEVICE, device), {});
  if (tensor.numel()) {
    copy_on_host(on_host(made), tensor);
    std::lock_guard<std::mutex> guard(mutex_);
    auto stream = stream_of(device);
    memories[made.storage().data()].written = {stream, stream_clocks[stream][stream]};
  }
  return made;
}

// Kernels whose result has a size that the host must know.
const std::set<std::string> SIZED = {
    "aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::bincount", "aten::multinomial",
    "aten::_embedding_bag"};

struct Call {  // an op whose device tensors stand on the stack as CPU tensors on the same memory
  std::string name;
  int device = -1;
  bool has_host_tensor = false;
  bool has_mask = false;
  bool has_host_index = false;
  std::vector<std::pair<Tensor, Tensor>> aliases;
  std::vector<const void*> reads, writes;

  bool is_indexing() const { return name.find("index") != std::string::npos; }
  bool takes_any_device() const {
    return name.find("_foreach") != std::string::npos || name.find("_fused_") != std::string::npos;
  }
  Tensor alias(const Tensor& tensor, bool is_written) {
    if (!tensor.defined()) return tensor;
    if (!is_on_device(tensor)) {
      if (tensor.device().type() == ON_HOST && tensor.dim() > 0) (is_indexing() ? has_host_index : has_host_tensor) = true;
      return tensor;
    }
    int its = tensor.device().index();
    TORCH_CHECK(device < 0 || its == device || takes_any_device(), "Expected all tensors to be on the same device, but found at least two devices, cuda:",
                device, " and cuda:", its, "! (", name, ")");
    device = its;
    bool is_mask = tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
    if (is_indexing() && is_mask && !aliases.empty()) has_mask = true;
    (is_written ? writes : reads).push_back(tensor.storage().data());
    for (auto& [original, known] : aliases)
      if (original.is_same(tensor)) return known;
    bool is_resized = is_written && tensor.storage().nbytes() == 0;
    auto made = is_resized ? at::empty({0}, tensor.options().device(at::kCPU)) : on_host(tensor);
    aliases.emplace_back(tensor, made);
    return made;
  }
  Tensor original(const Tensor& result) {
    if (!result.defined() || result.device().type() != ON_HOST) return result;
    for (auto& [tensor, known] : aliases)
      if (known.is_same(result)) return tensor;
    if (result.has_storage() && result.storage().nbytes())
      for (auto& [tensor, known] : aliases)
        if (known.storage().data() == result.storage().data())
          return at::native::as_strided_tensorimpl(tensor, result.sizes(), result.strides(), result.storage_offset());
    return to_device(result, device);
  }
};

// Ops that take no generator draw from the default one of the CPU: it has the state of the device's meanwhile.
const std::set<std::string> DRAWING = {"aten::native_dropout"};

struct DeviceDraws {
  at::Generator host = at::detail::getDefaultCPUGenerator(), own;
  Tensor before;
  explicit DeviceDraws(int device) : own(generators()[device]), before(host.get_state()) { host.set_state(own.get_state()); }
  ~DeviceDraws() {
    own.set_state(host.get_state());
    host.set_state(before);
  }
};

void run(const c10::OperatorHandle& op, c10::Stack* stack) {
  const auto& schema = op.schema();
  auto first = stack->size() - schema.arguments().size();
  Call call{c10::toString(op.operator_name())};
  std::optional<Device> wanted;
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    auto& value = (*stack)[first + i];
    const auto& argument = schema.arguments()[i];
    bool is_written = argument.alias_info() && argument.alias_info()->isWrite();
    if (value.isTensor()) {
      value = call.alias(value.toTensor(), is_written);
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& each : value.toTensorVector()) list.push_back(call.alias(each, is_written));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const std::optional<Tensor>& each : value.toOptionalTensorVector())
        list.push_back(each ? std::optional<Tensor>(call.alias(*each, is_written)) : each);
      value = list;
    } else if (value.isDevice()) {
      wanted = value.toDevice();
      if (wanted->type() == ON_DEVICE) value = Device(ON_HOST);
    } else if (value.isNone() && argument.type()->str().find("Generator") != std::string::npos) {
      value = generators()[call.device < 0 ? current_device : call.device];
    }
  }
  TORCH_CHECK(!call.has_host_tensor || call.device < 0 || call.takes_any_device(),
              "Expected all tensors to be on the same device, but found at least two devices, cuda:", call.device, " and cpu! (", call.name, ")");
  if (call.device < 0) call.device = wanted && wanted->type() == ON_DEVICE && wanted->index() >= 0 ? wanted->index() : current_device;

  count(Kind::LAUNCH, call.name);
  work(call.device, call.reads, call.writes);
  auto stream = stream_of(call.device);
  if (call.name == "aten::histc" && at::isFloatingType((*stack)[first].toTensor().scalar_type()))
    at::globalContext().alertNotDeterministic("_histc_cuda with floating point input");
  bool is_repeat = call.name == "aten::repeat_interleave.Tensor" && (*stack)[first + 1].isNone();
  if (SIZED.count(call.name) || call.has_mask || is_repeat) wait_for(stream, "size of " + call.name);
  if (call.has_host_index) wait_for(stream, "copy an index to the device for " + call.name);
  {
    std::optional<DeviceDraws> drawing;
    if (DRAWING.count(call.name)) drawing.emplace(call.device);
    at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  for (auto& [tensor, alias] : call.aliases)
    if (tensor.storage().nbytes() == 0 && alias.numel() > 0) {
      tensor.resize_(alias.sizes());
      copy_on_host(on_host(tensor), alias);
    }
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = call.original(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& each : value.toTensorVector()) list.push_back(call.original(each));
      value = list;
    }
  }
}

// ---------------------------------------------------------------------------------- copies

Tensor& copy_to_device(Tensor& to, const Tensor& from, bool non_blocking) {
  int device = to.device().index();
  count(Kind::COPY, "to the device");
  if (to.dtype() != from.dtype() || !to.is_contiguous()) count(Kind::LAUNCH, "aten::copy_");
  work(device, {}, {to.storage().data()});
  if (!non_blocking) wait_for(stream_of(device), "copy to the device");
  copy_on_host(on_host(to), from);
  return to;
}

Tensor& copy_to_host(Tensor& to, const Tensor& from, bool non_blocking) {
  int device = from.device().index();
  // The dtype changes on the device, before the copy.
  if (to.dtype() != from.dtype()) check_dtype(to.scalar_type());
  count(Kind::COPY, "to the host");
  if (to.dtype() != from.dtype() || !from.is_non_overlapping_and_dense()) count(Kind::LAUNCH, "aten::copy_");
  work(device, {from.storage().data()}, {});
  auto stream = stream_of(device);
  if (!non_blocking || !PinnedMemory::get().has(to.data_ptr()) || !to.is_contiguous()) {
    wait_for(stream, "copy to the host");
    copy_on_host(to, on_host(from));
    return to;
  }
  auto value = at::empty(to.sizes(), to.options().pinned_memory(false));
  copy_on_host(value, on_host(from));
  std::memset(to.data_ptr(), 0xFF, to.nbytes());
  auto end = end_of(stream);
  std::lock_guard<std::mutex> guard(mutex_);
  late_copies.push_back({std::max(now(), end) + COPY_NS, to.data_ptr(), value});
  return to;
}

Tensor& copy_(Tensor& to, const Tensor& from, bool non_blocking) {
  if (to.is_same(from) || to.numel() == 0) return to;
  at::NoGradGuard no_grad;
  if (!is_on_device(from)) return copy_to_device(to, from, non_blocking);
  if (!is_on_device(to)) return copy_to_host(to, from, non_blocking);
  auto source = stream_of(from.device().index()), target = stream_of(to.device().index());
  count(source.first == target.first ? Kind::LAUNCH : Kind::COPY, source.first == target.first ? "aten::copy_" : "between devices");
  // torch lets both devices wait for each other before and after a copy between them.
  if (source.first != target.first) join(source, target);
  work(target.first, {from.storage().data()}, {to.storage().data()});
  if (source.first != target.first) join(source, target);
  copy_on_host(on_host(to), on_host(from));
  return to;
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  Tensor target = to;
  return copy_(target, from, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  Tensor target = to;
  target.resize_(from.sizes());
  return copy_(target, from, false);
}

at::Scalar local_scalar_dense(const Tensor& tensor) {
  int device = tensor.device().index();
  work(device, {tensor.storage().data()}, {});
  wait_for(stream_of(device), "read a value");
  return on_host(tensor).item();
}

Tensor& set_empty(Tensor& tensor) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, &DeviceMemory::get(), true);
  tensor.set_(storage, 0, {0}, {});
  return tensor;
}

void record_stream(Tensor& tensor, c10::Stream stream) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = memories.find(tensor.storage().data());
  if (found != memories.end()) found->second.recorded.insert(key_of(stream));
}

const Tensor& resize_(const Tensor& tensor, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  OnDevice on(tensor.device().index());
  return at::native::resize_(tensor, size, format);
}

// Ops that have a kernel on the CPU or that CUDA fuses are one launch, not those of their parts.
void run_as_one(const std::vector<std::string>& names) {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  for (auto& name : names) {
    try {
      library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run>());
    } catch (const c10::Error&) {  // An op of another build of torch.
    }
  }
}

// As torch._C._cuda_memoryStats gives them.
py::dict memory_stats(int device) {
  auto stats = DeviceMemory::get().getDeviceStats(device);
  auto pools = [](const c10::CachingAllocator::StatArray& amounts) {
    py::dict found;
    for (auto& [name, index] : std::map<std::string, int>{{"all", 0}, {"small_pool", 1}, {"large_pool", 2}}) {
      auto& one = amounts[index];
      py::dict numbers;
      numbers["current"] = one.current;
      numbers["peak"] = one.peak;
      numbers["allocated"] = one.allocated;
      numbers["freed"] = one.freed;
      found[name.c_str()] = numbers;
    }
    return found;
  };
  py::dict found;
  found["num_alloc_retries"] = stats.num_alloc_retries;
  found["num_ooms"] = stats.num_ooms;
  found["allocation"] = pools(stats.allocation);
  found["segment"] = pools(stats.segment);
  found["active"] = pools(stats.active);
  found["inactive_split"] = pools(stats.inactive_split);
  found["allocated_bytes"] = pools(stats.allocated_bytes);
  found["reserved_bytes"] = pools(stats.reserved_bytes);
  found["active_bytes"] = pools(stats.active_bytes);
  found["inactive_split_bytes"] = pools(stats.inactive_split_bytes);
  found["requested_bytes"] = pools(stats.requested_bytes);
  return found;
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&run>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", static_cast<Tensor (*)(const Tensor&, c10::IntArrayRef)>(at::native::view));
  library.impl("view.dtype", at::native::view_dtype);
  library.impl("view_as_real", at::native::view_as_real);
  library.impl("view_as_complex", at::native::view_as_complex);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("resize_", resize_);
  library.impl("copy_", copy_);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar_dense);
  library.impl("set_", set_empty);
  library.impl("set_.source_Storage", static_cast<Tensor& (*)(Tensor&, at::Storage)>(at::native::set_));
  library.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  library.impl("set_.source_Tensor", at::native::set_tensor_);
  library.impl("record_stream", record_stream);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  c10::SetAllocator(ON_DEVICE, &DeviceMemory::get(), 255);
  module.attr("DEVICES") = DEVICES;
  module.def("run_as_one", &run_as_one);
  module.def("start_counting", [](py::object function) {
    std::lock_guard<std::mutex> guard(mutex_);
    counts.clear();
    listener = function.is_none() ? nullptr : new py::object(function);
    counting = true;
  });
  module.def("stop_counting", [] {
    counting = false;
    delete listener;
    listener = nullptr;
    std::lock_guard<std::mutex> guard(mutex_);
    return counts;
  });
  module.def("set_capturing", [](bool on) { capturing = on; });
  module.def("is_capturing", [] { return capturing.load(); });
  module.def("set_without_float64", [](bool on) { without_float64 = on; });
  module.def("set_kernel_ns", [](int64_t ns) { kernel_ns = ns; });
  module.def("set_device", [](int device) { current_device = device; });
  module.def("get_device", [] { return current_device; });
  module.def("synchronize", [](int device) { Guard().synchronizeDevice(device); }, py::call_guard<py::gil_scoped_release>());
  module.def("generator", [](int device) { return generators()[device]; });
  module.def("memory_stats", &memory_stats);
  module.def("reset_peak", [](int device) { DeviceMemory::get().resetPeakStats(device); });
}
