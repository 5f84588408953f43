"""A kernel tree of a few files, built like the real ones: enough for kbuild, clang and the reader.

All text is our own.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from ring3_split.kernel import Kernel

CONFIG = (
    "X86_64=y",
    "MODULES=y",
    "NET=y",
    "CARD=m",
    "CARD_WOL=y",
    "BRIDGE=m",
    "PORT=y",
    "SHOUT=m",
    "FAST=m",
)

FILES = {
    "Makefile": """
        VERSION = 6
        PATCHLEVEL = 12
        SUBLEVEL = 3
        EXTRAVERSION = -small
        HOSTCFLAGS := -std=gnu99
        KBUILD_CFLAGS := -std=gnu11 -fshort-wchar -Wall
        NOSTDINC_FLAGS := -nostdinc
        """,
    "Kbuild": "",
    "arch/x86/Makefile": "",
    "arch/x86/include/asm/port.h": "#define PORTS 4\n",
    "include/linux/kconfig.h": "#include <generated/autoconf.h>\n",
    "include/linux/module.h": """
        #ifndef MODULE_H
        #define MODULE_H
        struct card { int (*open)(struct card *); int state; };
        int enable(struct card *card, const char *name);
        static inline int named(struct card *card) { return enable(card, KBUILD_MODNAME); }
        #ifdef LOUD
        int loud(struct card *card);
        #define wake(card) loud(card)
        #else
        #define wake(card) enable(card, "quiet")
        #endif
        #endif
        """,
    "drivers/Makefile": "obj-y += net/\nobj-$(CONFIG_BLOCKS) += blocks/\nobj-$(CONFIG_PORT) += "
    "port.o\n",
    "drivers/port.c": "#include <asm/port.h>\nint ports(void) { return PORTS; }\n",
    "drivers/blocks/Makefile": "obj-$(CONFIG_DISK) += disk.o\n",
    "drivers/blocks/Kconfig": "config DISK\n\ttristate\n",
    "drivers/Kconfig": "config BLOCKS\n\tbool\n",
    "drivers/net/Kconfig": "config OTHER\n\ttristate\n",
    "drivers/net/Makefile": """
        subdir-ccflags-y := -DDEEP -Wextra
        obj-$(CONFIG_CARD) += card.o bad-card.o
        obj-$(CONFIG_BRIDGE) += bridge/
        obj-$(CONFIG_OTHER) += \\
            other.o
        card-objs := card_main.o
        card-y += card_hw.o start.o
        card-$(CONFIG_CARD_WOL) += card_wol.o
        card-$(CONFIG_CARD_SECRET) += card_secret.o
        CFLAGS_card_hw.o := -DHARDWARE=2 -O3
        ccflags-y += -I$(src)/common -Wno-format
        """,
    "drivers/net/common/registers.h": "#define CONTROL 8\n",
    "drivers/net/card_main.c": """
        #include <linux/module.h>
        #include "card.h"
        static int card_open(struct card *card) { card->state = CONTROL; return named(card); }
        struct card card_ops = { .open = card_open };
        """,
    "drivers/net/card.h": "#include <registers.h>\nint card_reset(struct card *card);\n",
    "drivers/net/card_hw.c": """
        #include <linux/module.h>
        #include "card.h"
        int card_reset(struct card *card) { card->state = HARDWARE; return 0; }
        """,
    "drivers/net/card_wol.c": """
        #define LOUD
        #include <linux/module.h>
        int card_wake(struct card *card) { return wake(card); }
        """,
    "drivers/net/start.S": "",
    "drivers/net/bad-card.c": "#include <linux/module.h>\nint bad(void) { return missing_thing; "
    "}\n",
    "drivers/net/bridge/Makefile": "obj-m := not-this-one.o\n",
    "drivers/net/bridge/Kbuild": "obj-$(CONFIG_BRIDGE) += snd-bridge.o\nEXTRA_CFLAGS += "
    "-DOLD_WAY\nsnd-bridge-objs := bridge.o\n",
    "drivers/net/bridge/bridge.c": '#include "table.h"\nint bridge(void) { return TABLE + '
    "OLD_WAY; }\n",
    "drivers/net/bridge/table.h_shipped": "#define TABLE 3\n",
    "sound/Makefile": "obj-$(CONFIG_SHOUT) += shout.o\n",
    "sound/shout.c": "#include <linux/module.h>\nint shout(struct card *card) { return "
    "wake(card); }\n",
}


def plant(folder: Path, config: tuple[str, ...] = CONFIG) -> Path:
    """Writes the tree, configured, into a folder."""
    for name, text in FILES.items():
        put(folder / name, textwrap.dedent(text).lstrip())
    configure(folder, config)
    return folder


def configure(folder: Path, config: tuple[str, ...] = CONFIG) -> None:
    """Gives a tree its configuration and the headers generated from it."""
    options = "".join(f"CONFIG_{option}\n" for option in config)
    put(folder / ".config", options)
    put(folder / "include/config/auto.conf", options)
    defines = (
        f"#define CONFIG_{o.split('=')[0]}{'_MODULE' if o.endswith('=m') else ''} 1\n"
        for o in config
    )
    put(folder / "include/generated/autoconf.h", "".join(defines))


def put(file: Path, text: str) -> None:
    """Writes one file, with the folders above it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def error(kernel: Kernel, name: str, source: str, tmp_path: Path) -> str:
    """What clang says of a unit, with the flags that the kernel gives."""
    return kernel.compiler.compile(
        source, tmp_path / "x.ll", kernel.flags(kernel.module(name), source), kernel.root
    )
