"""The vector instructions that ``packed_products.py`` is made of, for each kind of CPU.

``sdot`` of ARM, ``vpdpbusd`` of AVX-512 VNNI, byte products of AVX2, or plain multiplications, which every CPU has.
All give the same whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from outrider.kernels.numba.packed_formats import BYTE_PLACES, UNIT, Format
from outrider.kernels.numba.tiles import FLOAT, PANEL, WORD, number, pointer
from outrider.runtime import cpu


def dot_instructions(facts: cpu.CpuFacts) -> str:
    """Which dot products of bytes a CPU has, of those known here."""
    if facts.multiplies_bytes:
        return "sdot" if facts.arm else "vnni"
    return "avx2" if facts.multiplies_bytes_by_vectors else "plain"


_LANES = {"sdot": 4, "vnni": 16, "avx2": 8, "plain": 4}


class Vectors:
    """Emits operations on the sixteen columns of a panel, in as many vectors (parts) as that takes."""

    def __init__(self, builder: Any, dots: str, converts_half: bool) -> None:
        self._builder, self._dots, self._converts = builder, dots, converts_half
        self.lanes = _LANES[dots]
        self.parts = PANEL // self.lanes
        self.signed = dots != "vnni"  # vpdpbusd multiplies unsigned weights
        self.octets = ir.VectorType(ir.IntType(8), 4 * self.lanes)
        self.sums, self.floats = ir.VectorType(WORD, self.lanes), ir.VectorType(FLOAT, self.lanes)

    def _call(self, name: str, result: Any, *arguments: Any) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return self._builder.call(cgutils.get_or_insert_function(self._builder.module, kind, name), arguments)

    def fma(self, one: Any, other: Any, total: Any) -> Any:
        return self._call(f"llvm.fma.v{self.lanes}f32", self.floats, one, other, total)

    def everywhere(self, one: Any, kind: Any) -> Any:
        """A number in all lanes."""
        first = self._builder.insert_element(ir.Constant(kind, ir.Undefined), one, ir.Constant(WORD, 0))
        lanes = ir.Constant(ir.VectorType(WORD, kind.count), [0] * kind.count)
        return self._builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), lanes)

    def _chosen(self, vector: Any, places: list[int]) -> Any:
        lanes = ir.Constant(ir.VectorType(WORD, len(places)), places)
        return self._builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), lanes)

    def _split(self, whole: Any) -> list[Any]:
        """A number for each column -> parts."""
        if self.parts == 1:
            return [whole]
        starts = range(0, PANEL, self.lanes)
        return [self._chosen(whole, list(range(first, first + self.lanes))) for first in starts]

    def _load(self, at: Any, kind: Any, count: int) -> Any:
        return self._builder.load(pointer(self._builder, at, number(0), ir.VectorType(kind, count)), align=1)

    def bytes(self, at: Any) -> list[Any]:
        """Signed bytes of the 16 columns, in the order of ``BYTE_PLACES`` -> parts of whole numbers."""
        builder, octets = self._builder, self._load(at, ir.IntType(8), PANEL)
        if self.lanes == 4:  # each column of a part is in a word of its own
            words, found = builder.bitcast(octets, self.sums), []
            for part in range(self.parts):
                moved = builder.shl(words, ir.Constant(self.sums, [24 - 8 * part] * 4)) if part < 3 else words
                found.append(builder.ashr(moved, ir.Constant(self.sums, [24] * 4)))
            return found
        return self._split(builder.sext(self._chosen(octets, list(BYTE_PLACES)), ir.VectorType(WORD, PANEL)))

    def halves(self, at: Any) -> list[Any]:
        """float16 [16] -> parts in float32."""
        builder, floats = self._builder, ir.VectorType(FLOAT, PANEL)
        if self._converts:
            return self._split(builder.fpext(self._load(at, ir.HalfType(), PANEL), floats))
        words = ir.VectorType(WORD, PANEL)
        bits = builder.zext(self._load(at, ir.IntType(16), PANEL), words)

        def every(value: int) -> Any:
            return ir.Constant(words, [value] * PANEL)

        size = builder.shl(builder.and_(bits, every(0x7FFF)), every(13))
        sign = builder.shl(builder.and_(bits, every(0x8000)), every(16))
        near = builder.bitcast(builder.or_(size, sign), floats)
        return self._split(builder.fmul(near, ir.Constant(floats, [2.0**112] * PANEL)))

    def inputs(self, row: Any) -> list[Any]:
        """A unit of a row, by steps of four inputs, each in all lanes."""
        builder, found = self._builder, []
        if self._dots == "sdot":  # which multiplies by a lane
            four = ir.VectorType(WORD, 4)
            for first in range(0, UNIT, 16):
                sixteen = builder.bitcast(self._load(builder.add(row, number(first)), ir.IntType(8), 16), four)
                found += [builder.bitcast(self._chosen(sixteen, [lane] * 4), self.octets) for lane in range(4)]
            return found
        for step in range(UNIT // 4):
            one = builder.load(pointer(builder, row, number(4 * step), WORD), align=1)
            found.append(builder.bitcast(self.everywhere(one, self.sums), self.octets))
        return found

    def steps(self, form: Format, at: Any, part: int) -> Iterator[tuple[int, Any]]:
        """A unit's weights in one part of the panel: steps of four inputs, and bytes [lanes, 4]."""
        builder, size = self._builder, 4 * self.lanes

        def load(place: int) -> Any:
            return self._load(builder.add(at, number(4 * PANEL * place + size * part)), ir.IntType(8), size)

        if form.bits == 8:
            for step in range(8):
                weights = load(step)
                yield step, weights if self.signed else builder.xor(weights, ir.Constant(weights.type, [128] * size))
            return
        above = form.bits - 4
        planes = [load(4 + plane) for plane in range(above)]
        mask = (1 << above) - 1 << 4
        for step in range(4):
            both = load(step)
            low, high = self._and(both, 15), self._shifted(both, -4, 15)
            for place, weights in ((step, low), (step + 4, high)):
                if above:
                    plane, bit = divmod(above * place, 8)
                    weights = builder.or_(weights, self._shifted(planes[plane], 4 - bit, mask))
                yield place, weights

    def _and(self, octets: Any, mask: int) -> Any:
        return self._builder.and_(octets, ir.Constant(octets.type, [mask] * octets.type.count))

    def _shifted(self, octets: Any, left: int, mask: int) -> Any:
        """Each byte shifted, and of it the bits of a mask. x86 shifts no bytes, but words, whose neighbours the mask
        takes away."""
        builder = self._builder
        if left == 0:
            return self._and(octets, mask)
        kind = octets.type if self._dots == "sdot" else self.sums
        given, by = builder.bitcast(octets, kind), ir.Constant(kind, [abs(left)] * kind.count)
        moved = builder.shl(given, by) if left > 0 else builder.lshr(given, by)
        return self._and(builder.bitcast(moved, octets.type), mask)

    def dot(self, total: Any, weights: Any, given: Any, narrow: bool) -> Any:
        """total + four products in each lane; ``narrow``: weights are from 0 to 63."""
        builder = self._builder
        if self._dots == "sdot":
            return self._call("llvm.aarch64.neon.sdot.v4i32.v16i8", self.sums, total, weights, given)
        if self._dots == "vnni":
            words = [builder.bitcast(octets, self.sums) for octets in (weights, given)]
            return self._call("llvm.x86.avx512.vpdpbusd.512", self.sums, total, *words)
        if self._dots == "avx2":
            if not narrow:  # sizes of weights times inputs with their signs
                given = self._call("llvm.x86.avx2.psign.b", self.octets, given, weights)
                negative = builder.icmp_signed("<", weights, ir.Constant(self.octets, [0] * 32))
                weights = builder.select(negative, builder.sub(ir.Constant(self.octets, [0] * 32), weights), weights)
            pairs = self._call("llvm.x86.avx2.pmadd.ub.sw", ir.VectorType(ir.IntType(16), 16), weights, given)
            ones = ir.Constant(pairs.type, [1] * 16)
            return builder.add(total, self._call("llvm.x86.avx2.pmadd.wd", self.sums, pairs, ones))
        wide = ir.VectorType(WORD, 16)
        products = builder.mul(builder.sext(weights, wide), builder.sext(given, wide))
        for step in range(4):
            total = builder.add(total, self._chosen(products, list(range(step, 16, 4))))
        return total

    def dot_pairs(self, total: Any, one: Any, other: Any) -> Any:
        """total + two products of two bytes each in every lane, by AVX-512 VNNI."""
        return self._call("llvm.x86.avx512.vpdpwssd.512", self.sums, total, one, other)


def vectors(builder: Any, facts: cpu.CpuFacts) -> Vectors:
    return Vectors(builder, dot_instructions(facts), facts.arm or "f16c" in facts.compiler)
