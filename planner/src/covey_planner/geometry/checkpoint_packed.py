"""How the numbers of a checkpoint are packed, from its `config.json`: by mlx-lm (`quantization`), or by others."""

from dataclasses import dataclass

from covey_planner.geometry.json_fields import Fields

# Of one parameter, where none else says it, as packed integers are published (`pack-quantized`).
_USUAL_BITS = 4


@dataclass(frozen=True, slots=True)
class Packing:
    """Bits of one parameter, where several are in one number of 32 bits; 0: none are."""

    bits: int
    mlx_bits: int
    """As mlx-lm packs them."""
    whole: Fields
    fields: Fields

    def of(self, name: str) -> int:
        """Of one tensor, which may be packed otherwise than the rest."""
        for place in (self.whole, self.fields):
            own = place.under("quantization").child(name.removesuffix(".weight"))
            if own is not None:
                return own.integer("bits", 1, 16)
        return self.mlx_bits


def read_packing(whole: Fields, fields: Fields) -> Packing:
    """HeaderInvalid for what no engine here reads."""
    mlx_bits = next((p.under("quantization").integer("bits", 1, 16) for p in (whole, fields) if "quantization" in p), 0)
    said = whole.under("quantization_config") if "quantization_config" in whole else fields.under("quantization_config")
    method = said.text("quant_method", "")
    if method == "bitsandbytes":
        raise said.wrong("quant_method", "one that an engine here reads", method)
    return Packing(mlx_bits or _bits_of(said, method), mlx_bits, whole, fields)


def _bits_of(said: Fields, method: str) -> int:
    match method:
        case "awq" | "gptq":
            return said.largest(("bits", "w_bit"), 0, 64, 0)
        case "compressed-tensors" if said.text("format", "") == "pack-quantized":
            return _group_bits(said) or _USUAL_BITS
        case _:
            return 0


def _group_bits(said: Fields) -> int:
    """Of the first group of tensors that says it; the others have the same, or the count of parameters is off."""
    groups = said.under("config_groups")
    weights = [each.child("weights") for name in groups if (each := groups.child(name)) is not None]
    return next((each.integer("num_bits", 1, 16) for each in weights if each and "num_bits" in each), 0)
