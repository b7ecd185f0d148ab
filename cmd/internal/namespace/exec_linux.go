package namespace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// Exec runs a program in place of this one. If it returns, the program was not run.
func Exec(program, env []string) error {
	file, err := exec.LookPath(program[0])
	if err == nil {
		err = syscall.Exec(file, program, env)
	}
	if errors.Is(err, syscall.ENOEXEC) {
		script := AsScript(file, program)
		err = syscall.Exec(script[0], script, env)
	}
	return err
}

// AsScript returns the command line of a shell that runs a file which the kernel does not, as it
// has no line with #!, or is for another processor. POSIX's execvp does so too, and thus env and
// sudo.
func AsScript(file string, program []string) []string {
	return append([]string{"/bin/sh", file}, program[1:]...)
}

// The exit statuses of shells for a program that cannot be run.
const (
	statusNotExecutable = 126
	statusNotFound      = 127
)

// NotRun prints the reason why a program was not run to stderr, and returns the exit status.
func NotRun(err error) (status int) {
	fmt.Fprintln(os.Stderr, "softrnic:", err)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return statusNotFound
	}
	return statusNotExecutable
}
