// The program may unmap memory that the engine accesses. The fault must end the operation, not the
// process: see fault.c.
#ifndef FAULT_H
#define FAULT_H

// fault_restore_stacks is called once, after Go has installed its handlers. Go adds SA_ONSTACK to
// all others, and the threads that have called the engine have Go's alternate stack of 32 KiB. A
// handler that needs more, such as one that prints a backtrace, would overwrite Go's memory.
void fault_restore_stacks(void);

// fault_init is called once, after Go has installed its handlers.
void fault_init(void);

// fault_check checks whether the program has installed a handler. If so, it installs the engine's
// handler in front of it. It returns 0, or ENOSPC if the program has installed too many.
int fault_check(void);

#endif
