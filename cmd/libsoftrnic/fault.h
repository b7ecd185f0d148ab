// The program's memory may be gone when the engine touches it, and the fault must end an operation, not the process: see
// fault.c.
#ifndef FAULT_H
#define FAULT_H

// fault_init is called once, when Go has installed its handlers.
void fault_init(void);

// fault_check puts the engine's handler before one that the program has installed meanwhile. It returns 0, or ENOSPC where
// the program has installed too many.
int fault_check(void);

#endif
