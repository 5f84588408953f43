/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The switch between stacks, for the System V ABI on x86-64: what a function must preserve (rbx,
 * rbp, r12 to r15, and the control bits of mxcsr and the x87) is pushed, everything else is the
 * caller's to save.
 */
	.text

/* void ddekit_stack_switch(void **save: rdi, void *load: rsi) */
	.globl ddekit_stack_switch
	.hidden ddekit_stack_switch
	.type ddekit_stack_switch, @function
ddekit_stack_switch:
	.cfi_startproc
	pushq %rbp
	pushq %rbx
	pushq %r12
	pushq %r13
	pushq %r14
	pushq %r15
	subq $8, %rsp
	stmxcsr (%rsp)
	fnstcw 4(%rsp)
	movq %rsp, (%rdi)
	movq %rsi, %rsp
	ldmxcsr (%rsp)
	fldcw 4(%rsp)
	addq $8, %rsp
	popq %r15
	popq %r14
	popq %r13
	popq %r12
	popq %rbx
	popq %rbp
	ret
	.cfi_endproc
	.size ddekit_stack_switch, . - ddekit_stack_switch

/*
 * Where a new context begins: its entry is in r12, what it is given in r13. A backtrace ends here.
 */
	.globl ddekit_stack_start
	.hidden ddekit_stack_start
	.type ddekit_stack_start, @function
ddekit_stack_start:
	.cfi_startproc
	.cfi_undefined rip
	xorl %ebp, %ebp
	movq %r13, %rdi
	callq *%r12
	ud2
	.cfi_endproc
	.size ddekit_stack_start, . - ddekit_stack_start

/* void ddekit_stack_call(void *stack: rdi, void (*function)(void *): rsi, void *arg: rdx) */
	.globl ddekit_stack_call
	.hidden ddekit_stack_call
	.type ddekit_stack_call, @function
ddekit_stack_call:
	.cfi_startproc
	pushq %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset rbp, -16
	movq %rsp, %rbp
	.cfi_def_cfa_register rbp
	movq %rdi, %rsp
	movq %rdx, %rdi
	callq *%rsi
	movq %rbp, %rsp
	popq %rbp
	.cfi_def_cfa rsp, 8
	ret
	.cfi_endproc
	.size ddekit_stack_call, . - ddekit_stack_call

	.section .note.GNU-stack, "", @progbits
