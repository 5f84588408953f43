# Evaluates the kbuild files of DIRS, one after another, and prints the variables that matter, each
# in a line
#   @ DIRECTORY, then NAME<tab>VALUE
# Everything that a file sets is taken back before the next one. Started in the kernel's source
# folder; on the command line: DIRS, CONFIG (the configuration in make's own syntax), srctree,
# objtree, ARCH, SRCARCH.

MAKEFLAGS += -rR
.PHONY: nothing
nothing: ;

# Kbuild's functions that ask the compiler are empty here: what they give are warnings and tuning.
include $(CONFIG)

tab := $(nop)	$(nop)
wanted := obj-y obj-m subdir-y subdir-m EXTRA_CFLAGS EXTRA_CPPFLAGS ccflags-remove-y CFLAGS_% \
	%-y %-m %-objs

define visit
obj := $1
src := $1
obj-y :=
obj-m :=
subdir-y :=
subdir-m :=
EXTRA_CFLAGS :=
EXTRA_CPPFLAGS :=
ccflags-y :=
cppflags-y :=
subdir-ccflags-y :=
MAKEFILE_LIST :=
include $(firstword $(wildcard $1/Kbuild $1/Makefile))
$$(info @ $1)
$$(info MAKEFILE_LIST$$(tab)$$(strip $$(MAKEFILE_LIST)))
$$(foreach v,$$(filter $$(wanted),$$(filter-out $$(known),$$(.VARIABLES))), \
	$$(if $$(strip $$($$v)),$$(info $$v$$(tab)$$(strip $$($$v)))))
$$(foreach v,$$(filter-out $$(known),$$(.VARIABLES)),$$(eval override undefine $$v))
endef

known :=
known := $(.VARIABLES) DIRS
$(foreach d,$(DIRS),$(eval $(call visit,$d)))
