/*
 * The firmware and only program of the machine that TestQEMU migrates. It writes a number to every
 * 64th byte of SIZE bytes from 1 MiB, then the next number, and so on. It has 64 KiB, whose last bytes
 * are the last of the processor's 32-bit addresses.
 */
	.globl	_start
	.code16
_start:
	cli
	lgdtl	%cs:pointer
	movl	%cr0, %eax
	orb	$1, %al
	movl	%eax, %cr0
	ljmpl	$8, $flat + 0xffff0000

	.code32
flat:
	movw	$16, %ax
	movw	%ax, %ds
	xorl	%eax, %eax
pass:
	incl	%eax
	movl	$0x100000, %edi
next:
	movl	%eax, (%edi)
	addl	$64, %edi
	cmpl	$0x100000 + SIZE, %edi
	jb	next
	pause			/* here TCG looks after other threads */
	jmp	pass

	.balign	8
segments:			/* none, code, data */
	.quad	0, 0x00cf9a000000ffff, 0x00cf92000000ffff
pointer:
	.word	. - segments - 1
	.long	segments + 0xffff0000

	.org	0xfff0		/* where the processor begins */
	.code16
	jmp	_start
	.org	0x10000
