"""Vectors during code generation, with an operator for each instruction."""

# mypy: ignore-errors
# llvmlite has no types.


class Lanes:
    """Vector of integers of equal width, or of conditions; operators act on each lane.

    The other operand is another vector or a number for all lanes.  `>>` fills with zeros.
    """

    def __init__(self, builder, value):
        self.builder, self.value = builder, value

    def _apply(self, instruction, other):
        if isinstance(other, int):
            other = Lanes(self.builder, self.value.type([other] * self.value.type.count))
        return Lanes(self.builder, instruction(self.value, other.value))

    def __add__(self, other):
        return self._apply(self.builder.add, other)

    def __sub__(self, other):
        return self._apply(self.builder.sub, other)

    def __mul__(self, other):
        return self._apply(self.builder.mul, other)

    def __and__(self, other):
        return self._apply(self.builder.and_, other)

    def __or__(self, other):
        return self._apply(self.builder.or_, other)

    def __xor__(self, other):
        return self._apply(self.builder.xor, other)

    def __lshift__(self, other):
        return self._apply(self.builder.shl, other)

    def __rshift__(self, other):
        return self._apply(self.builder.lshr, other)

    def compare(self, sign, other, signed=True):
        """Return conditions.  sign: as in Python"""
        compare = self.builder.icmp_signed if signed else self.builder.icmp_unsigned
        return self._apply(lambda a, b: compare(sign, a, b), other)

    def choose(self, one, other):
        """Return lanes of `one` where these conditions hold, else of `other`."""
        return Lanes(self.builder, self.builder.select(self.value, one.value, other.value))

    def filled(self, number):
        """Return lanes like these with the number in each."""
        return Lanes(self.builder, self.value.type([number] * self.value.type.count))

    def extended(self, bits, signed=False):
        """Return the lanes, each extended to `bits`."""
        from llvmlite import ir

        extend = self.builder.sext if signed else self.builder.zext
        kind = ir.VectorType(ir.IntType(bits), self.value.type.count)
        return Lanes(self.builder, extend(self.value, kind))

    def shortened(self, bits):
        """Return the lowest `bits` of each lane."""
        from llvmlite import ir

        kind = ir.VectorType(ir.IntType(bits), self.value.type.count)
        return Lanes(self.builder, self.builder.trunc(self.value, kind))

    def split(self, bits):
        """Return the same memory as lanes of `bits`, lowest first."""
        from llvmlite import ir

        kind, element = ir.IntType(bits), self.value.type.element
        n = self.value.type.count * element.width // bits
        return Lanes(self.builder, self.builder.bitcast(self.value, ir.VectorType(kind, n)))

    def shuffled(self, other, order):
        """Return the lanes of this and the other vector, counted one after the other, in order."""
        from llvmlite import ir

        order = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), list(order))
        return Lanes(self.builder, self.builder.shuffle_vector(self.value, other.value, order))

    def scalars(self):
        """Return each lane as a value of its own."""
        from llvmlite import ir

        return [
            self.builder.extract_element(self.value, ir.IntType(32)(lane))
            for lane in range(self.value.type.count)
        ]

    def mask(self):
        """Return the conditions as bits of a word of 64 bits."""
        from llvmlite import ir

        bits = self.builder.bitcast(self.value, ir.IntType(self.value.type.count))
        return self.builder.zext(bits, ir.IntType(64))


def lanes_of(builder, values):
    """Return a vector of the values."""
    from llvmlite import ir

    vector = ir.VectorType(values[0].type, len(values))(ir.Undefined)
    for lane, value in enumerate(values):
        vector = builder.insert_element(vector, value, ir.IntType(32)(lane))
    return Lanes(builder, vector)


def repeated(builder, value, n):
    """Return a vector of n lanes with the value in each."""
    from llvmlite import ir

    vector = lanes_of(builder, [value, *[value.type(ir.Undefined)] * (n - 1)])
    return vector.shuffled(vector, [0] * n)
