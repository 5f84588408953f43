# SPDX-License-Identifier: GPL-2.0-only
# Makes assembly of what is not there. Names, one a line, come by standard input; two lists say what
# is known of some:
#   reviewed: NAME VALUE REASON    a function that may answer VALUE
#   data:     NAME BYTES REASON    no function, but as many zeroes
# Any other is a function that names itself and ends the process.
BEGIN {
    read(reviewed, value); read(data, bytes)
    print "# Generated: what the kernel's files ask for and nobody has."
}
function read(file, into,    line, words) {
    while ((getline line < file) > 0)
        if (line !~ /^#/ && split(line, words, " ") >= 3) into[words[1]] = words[2]
        else if (line !~ /^#/ && line != "") {
            print file ": NAME VALUE REASON wanted: " line > "/dev/stderr"
            exit 1
        }
}
{
    printf ".globl %s\n", $1
    if ($1 in bytes)
        printf ".bss\n.balign 64\n.type %s, @object\n.size %s, %s\n%s: .zero %s\n", $1, $1, \
            bytes[$1], $1, bytes[$1]
    else if ($1 in value)
        printf ".text\n.type %s, @function\n%s: movq $%s, %%rax\nret\n", $1, $1, value[$1]
    else
        printf ".text\n.type %s, @function\n%s: leaq 1f(%%rip), %%rdi\njmp dde_stub\n" \
            ".section .rodata\n1: .asciz \"%s\"\n", $1, $1, $1
}
END { print ".section .note.GNU-stack, \"\", @progbits" }
