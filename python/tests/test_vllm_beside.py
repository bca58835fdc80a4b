# SPDX-License-Identifier: Apache-2.0
"""Copies of IcmsConnector's workers beside the model, without a GPU and without PyTorch.

Goal: whatever the order in which a GPU runs streams, the model meets what was loaded, what is stored
is what the model wrote, and slots are given back when nothing uses them any more.
Method: streams that run one operation at a time, chosen at random, between them nothing but events;
the product's copies on them, and a model that writes and reads blocks. Not tested: torch.cuda itself.
"""
import contextlib
import random
import types
import unittest
import unittest.mock

import vllm_stand_ins as stand_ins

stand_ins.install()
from icms.vllm import beside  # noqa: E402
from icms.vllm.beside import Beside  # noqa: E402
from icms.vllm.connector import IcmsConnector, Step, _Worker  # noqa: E402

LAYERS, WIDTH, BLOCKS, SLOTS = 3, 2, 6, 8


class Stream:
    def __init__(self, gpu):
        self.gpu, self.queue = gpu, []
        gpu.streams.append(self)

    def wait_event(self, event):
        assert event.recorded
        self.queue.append(("wait", event))

    def wait_stream(self, other):
        event = self.gpu.event()
        event.record(other)
        self.wait_event(event)


class Event:
    def __init__(self, gpu):
        self.gpu = gpu
        self.recorded = self.happened = False

    def record(self, stream):
        assert not self.recorded
        self.recorded = True
        stream.queue.append(("record", self))

    def query(self):
        return self.happened

    def synchronize(self):
        self.gpu.run()
        assert self.happened


class Gpu:
    """What `beside` uses of torch, run by `step`."""

    def __init__(self, pinned=0):
        self.streams, self.inside, self.pinned, self.unpinned = [], [], [], []
        self.device = types.SimpleNamespace(type="cuda")
        self.model = Stream(self)

        def pin(address, nbytes, flags):
            self.pinned.append((address, nbytes))
            return pinned

        self.cuda = types.SimpleNamespace(
            Stream=lambda device: Stream(self), Event=self.event, stream=self.within,
            current_stream=lambda device: self.model,
            cudart=lambda: types.SimpleNamespace(cudaHostRegister=pin,
                                                 cudaHostUnregister=self.unpinned.append))

    def event(self):
        return Event(self)

    @contextlib.contextmanager
    def within(self, stream):
        self.inside.append(stream)
        yield
        self.inside.pop()

    def step(self, stream):
        """Runs one operation; False: it has none, or waits."""
        if not stream.queue or stream.queue[0][0] == "wait" and not stream.queue[0][1].happened:
            return False
        what, operation = stream.queue.pop(0)
        if what == "record":
            operation.happened = True
        elif what == "run":
            operation()
        return True

    def run(self, *streams):
        """Until nothing goes on, in any order."""
        streams = list(streams or self.streams)
        while any(self.step(stream) for stream in random.sample(streams, len(streams))):
            pass


class Rows:
    """(row, byte) of a device or of the host; a column range of one is a view."""

    def __init__(self, gpu, device, rows, width, store=None, first=0):
        self.gpu, self.device, self.shape, self.first = gpu, device, (rows, width), first
        self.store = store or [bytearray(width) for _ in range(rows)]

    def __getitem__(self, at):
        if isinstance(at, tuple):
            return Rows(self.gpu, self.device, self.shape[0], at[1].stop - at[1].start, self.store,
                        at[1].start)
        return Row(self, at)

    def data_ptr(self):
        return 4096

    def numel(self):
        return self.shape[0] * self.shape[1]


class Row:
    def __init__(self, rows, index):
        self.rows, self.index = rows, index

    def get(self):
        first = self.rows.first
        return bytes(self.rows.store[self.index][first:first + self.rows.shape[1]])

    def put(self, data):
        first = self.rows.first
        self.rows.store[self.index][first:first + len(data)] = data

    def copy_(self, other, non_blocking):
        assert non_blocking
        stream = self.rows.gpu.inside[-1]
        assert stream is not self.rows.gpu.model
        stream.queue.append(("run", lambda: self.put(other.get())))


class Copies(unittest.TestCase):
    def open(self, by_layer=False, pinned=0):
        self.gpu = Gpu(pinned)
        patched = unittest.mock.patch.object(beside, "torch", self.gpu)
        patched.start()
        self.addCleanup(patched.stop)
        self.pages = [Rows(self.gpu, self.gpu.device, BLOCKS, WIDTH) for _ in range(LAYERS)]
        self.host = Rows(self.gpu, None, SLOTS, WIDTH * LAYERS)
        self.log = unittest.mock.Mock()
        self.beside = Beside(self.pages, self.host, by_layer, self.log)
        self.loads, self.stores = self.beside._loads, self.beside._stores

    def compute(self, function):
        self.gpu.model.queue.append(("run", function))

    def fill(self, slot, data):
        self.host[:, 0:WIDTH * LAYERS][slot].put(data)

    def test_a_step_begins_when_its_blocks_are_loaded(self):
        self.open()
        self.fill(5, b"abcdef")
        seen = []
        self.beside.load(1, [(2, 5)])
        self.compute(lambda: seen.extend(page[2].get() for page in self.pages))
        self.gpu.run(self.gpu.model)
        self.assertEqual((seen, self.beside.done()), ([], set()))
        self.gpu.run()
        self.assertEqual((seen, self.beside.done()), ([b"ab", b"cd", b"ef"], {1}))
        self.assertEqual(self.beside.done(), set())

    def test_loads_wait_for_what_the_model_does_with_the_blocks(self):
        self.open()
        self.fill(0, b"abcdef")
        before = []
        self.compute(lambda: before.append(self.pages[0][1].get()))
        self.beside.load(1, [(1, 0)])
        self.gpu.run(self.loads)
        self.gpu.run()
        self.assertEqual((before, self.pages[0][1].get()), ([b"\0\0"], b"ab"))

    def test_the_first_layer_is_computed_while_others_arrive(self):
        self.open(by_layer=True)
        self.fill(5, b"abcdef")
        seen = []
        self.beside.load(1, [(2, 5)])
        for layer in range(LAYERS):
            self.beside.wait_for_layer(layer)
            self.compute(lambda layer=layer: seen.append(self.pages[layer][2].get()))
        self.gpu.run(self.gpu.model)
        self.assertEqual(seen, [])
        for layer in range(LAYERS):
            while not (self.loads.queue[0][0] == "record"):
                self.assertTrue(self.gpu.step(self.loads) or self.gpu.step(self.gpu.model))
            self.gpu.step(self.loads)
            self.gpu.run(self.gpu.model)
            self.assertEqual(seen, [b"ab", b"cd", b"ef"][:layer + 1])
        self.beside.wait_for_layer(0)  # again: a layer that shares its memory with another one

    def test_layers_that_nobody_waits_for_are_there_for_the_next_step(self):
        self.open(by_layer=True)
        self.fill(5, b"abcdef")
        seen = []
        self.beside.load(1, [(2, 5)])
        self.beside.store(1, [])
        self.compute(lambda: seen.append(self.pages[2][2].get()))
        self.gpu.run(self.gpu.model)
        self.assertEqual(seen, [])
        self.gpu.run()
        self.assertEqual(seen, [b"ef"])

    def test_the_next_step_goes_on_beside_a_store(self):
        self.open()
        self.compute(lambda: self.pages[0][3].put(b"xy"))
        self.beside.load(1, [])
        self.beside.store(1, [(3, 7)])
        seen = []
        self.beside.load(2, [])
        self.compute(lambda: seen.append("step 2"))
        self.gpu.run(self.stores)
        self.gpu.run(self.gpu.model)
        self.assertEqual((seen, self.beside.done()), (["step 2"], set()))  # and nothing is stored
        self.gpu.run(self.stores)
        self.assertEqual((self.host[7].get()[:2], self.beside.done()), (b"xy", {1}))

    def test_a_step_that_writes_to_blocks_waits_until_they_are_stored(self):
        self.open()
        self.compute(lambda: self.pages[0][3].put(b"xy"))
        self.beside.store(1, [(3, 7)])
        self.beside.wait_for_stores()
        self.compute(lambda: self.pages[0][3].put(b"!!"))
        self.gpu.run(self.gpu.model)
        self.gpu.run()
        self.assertEqual(self.host[7].get()[:2], b"xy")

    def test_any_order_of_streams_is_that_of_steps(self):
        """Steps that load, compute and store, with blocks and slots that are used again."""
        for seed in range(200):
            random.seed(seed)
            self.open(by_layer=seed % 2 == 1)
            free, slots, storing = list(range(BLOCKS)), list(range(SLOTS)), {}
            wanted, got, outstanding = {}, {}, {}
            for number in range(1, 15):
                loads, stores = [], []
                used = [free.pop() for _ in range(random.randint(0, min(3, len(free))))]
                behind = any(not blocks.isdisjoint(used) for blocks in storing.values())
                for block in used:
                    data = bytes(random.randrange(256) for _ in range(WIDTH * LAYERS))
                    if random.random() < 0.5 and slots:
                        loads.append((block, slots.pop()))
                        self.fill(loads[-1][1], data)
                    if slots:
                        stores.append((block, slots.pop()))
                    wanted[number, block] = (data, any(block == one for one, _ in loads))
                if behind:
                    self.beside.wait_for_stores()
                if loads:
                    self.beside.load(number, loads)
                for layer in range(LAYERS):
                    self.beside.wait_for_layer(layer)
                    for block in used:
                        data, loaded = wanted[number, block]
                        part = data[layer * WIDTH:(layer + 1) * WIDTH]
                        row = self.pages[layer][block]
                        if loaded:
                            self.compute(lambda row=row, key=(number, block, layer): got.__setitem__(
                                key, row.get()))
                        else:
                            self.compute(lambda row=row, part=part: row.put(part))
                if not loads:
                    self.beside.load(number, loads)  # as vLLM does then
                outstanding[number] = (loads, stores)
                if seed % 3 == 0:  # a drafting runner asks before it saves
                    self.gpu.run(self.loads, self.gpu.model)
                    self.reported(outstanding, storing, slots, wanted, number)
                self.beside.store(number, stores)
                free += used  # the requests have finished
                random.shuffle(free)
                storing[number] = {block for block, _ in stores}
                for _ in range(random.randint(0, 40)):
                    self.gpu.step(random.choice(self.gpu.streams))
                self.reported(outstanding, storing, slots, wanted)
            self.gpu.run()
            self.reported(outstanding, storing, slots, wanted)
            self.assertEqual([number for number, (loads, stores) in outstanding.items()
                              if loads or stores], [])
            for (number, block, layer), part in got.items():
                data, _ = wanted[number, block]
                self.assertEqual(part, data[layer * WIDTH:(layer + 1) * WIDTH], seed)

    def reported(self, outstanding, storing, slots, wanted, begun=0):
        for number in self.beside.done(begun):
            loads, stores = outstanding.pop(number)
            del storing[number]
            for block, slot in stores:
                self.assertEqual(self.host[slot].get(), wanted[number, block][0])
            slots += [slot for _, slot in loads + stores]

    def test_memory_that_cannot_be_pinned_is_said_once(self):
        self.open(pinned=2)
        self.assertEqual(self.gpu.pinned, [(4096, SLOTS * WIDTH * LAYERS)])
        self.log.warning.assert_called_once()
        self.assertIn("pin", self.log.warning.call_args.args[0])

    def test_memory_is_let_go_of_once_its_copies_have_ended(self):
        for code, unpinned in ((0, [4096]), (2, [])):
            self.open(pinned=code)
            self.fill(5, b"abcdef")
            worker = _Worker(None, 0, False)
            worker._beside = self.beside
            self.beside.load(1, [(2, 5)])
            self.compute(lambda: self.assertEqual(self.gpu.unpinned, []))
            worker.close()
            self.assertEqual(self.pages[0][2].get(), b"ab")
            self.assertEqual(self.gpu.unpinned, unpinned)
            self.beside.close()
            worker.close()
            self.assertEqual(self.gpu.unpinned, unpinned)

    def test_a_worker_on_a_gpu_reports_steps_that_have_ended(self):
        self.open(by_layer=True)
        worker = _Worker(None, 1, True)
        worker._pages = self.pages
        worker._layers = {"first": 0, "second": 1, "third": 2, "like the third": 2}
        worker._map = lambda step: self.host
        worker.copy(Step(1), [], load=True)  # nothing to copy: nothing is pinned yet
        worker.wait_for_layer("first")
        worker.copy(Step(1), [], load=False)
        self.assertEqual((worker.take_copied(), len(self.gpu.pinned)), ({}, 1))
        self.fill(5, b"abcdef")
        worker.copy(Step(2), [(2, [0, 5])], load=True)
        self.assertEqual(len(self.gpu.pinned), 2)
        worker.wait_for_layer("like the third")
        worker.wait_for_layer("unknown")
        self.gpu.run()
        self.assertEqual(worker.take_copied(), {})  # a drafting runner asks before it saves
        worker.copy(Step(2), [(2, [1, 6])], load=False)
        self.assertEqual(worker.take_copied(), {})
        self.gpu.run()
        self.assertEqual(self.host[6].get(), b"abcdef")
        self.assertEqual(worker.take_copied(), {2: 1})
        self.assertEqual(worker.take_copied(), {})

    def test_a_worker_without_a_gpu_reports_a_step_once(self):
        worker = _Worker(None, 0, False)
        worker._pages = [types.SimpleNamespace(device=types.SimpleNamespace(type="cpu"))]
        worker._map = worker._copy_now = lambda *arguments: None
        worker.copy(Step(1), [(2, [5])], load=True)
        self.assertEqual(worker.take_copied(), {})  # a drafting runner asks before it saves
        worker.copy(Step(1), [(3, [6])], load=False)
        self.assertEqual(worker.take_copied(), {1: 1})
        self.assertEqual(worker.take_copied(), {})

    def test_blocks_are_stored_before_a_runner_writes_to_them(self):
        """vLLM's runners begin the loads of a step that has none behind the model."""
        self.open()
        connector = IcmsConnector.__new__(IcmsConnector)
        connector._worker = worker = _Worker(None, 0, False)
        worker._beside = self.beside
        worker._pages = self.pages
        self.compute(lambda: self.pages[0][3].put(b"xy"))
        worker.copy(Step(1), [(3, [7])], load=False)
        for number, behind, seen in ((2, False, b"!!"), (3, True, b"xy")):
            with self.subTest(behind):
                connector.handle_preemptions(Step(number, behind=behind))
                self.compute(lambda: self.pages[0][3].put(b"!!"))
                worker.copy(Step(number), [], load=True)
                worker.copy(Step(number), [], load=False)
                self.gpu.run(self.gpu.model)
                self.gpu.run()
                self.assertEqual(self.host[7].get()[:2], seen)
                self.compute(lambda: self.pages[0][3].put(b"xy"))
                worker.copy(Step(number + 10), [(3, [7])], load=False)

    def test_full_graphs_are_kept_off_layers(self):
        for extra, piecewise in (({}, False), ({"by_layer": True}, True)):
            self.assertEqual(IcmsConnector.requires_piecewise_for_cudagraph(extra), piecewise)


if __name__ == "__main__":
    unittest.main()
