package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// handlerStack is the size of Go's stack, in bytes, that a thread of the program gets. The engine
// needs some 10 KiB. The rest is for signal handlers. A handler that was installed without
// SA_ONSTACK runs on the thread's current stack. While the thread is in the engine, that is Go's
// stack. The handler's frame alone may have 4 KiB, for which Go does not account. The stack does
// not shrink, because the engine is built with gcshrinkstackoff.
//
// Go begins with 4 KiB. A thread cannot make it grow in time: during its first call, Go unblocks
// some signals before it runs any code of the engine.
const handlerStack = 96 << 10

// firstStack finds the size of the stack of a thread that C has created, in Go's runtime.
var firstStack = regexp.MustCompile(`(?s)(\nfunc oneNewExtraM\(\) \{.*?malg\()(\d+)(\).*?\n\}\n)`)

// withHandlerStack returns Go's runtime/proc.go with handlerStack.
func withHandlerStack(proc []byte) ([]byte, error) {
	if n := len(firstStack.FindAll(proc, -1)); n != 1 {
		return nil, fmt.Errorf("this version of Go creates the stacks of C's threads in another way (%d places, want 1): "+
			"build with the version in go.mod, with GOTOOLCHAIN", n)
	}
	return firstStack.ReplaceAll(proc, fmt.Appendf(nil, "${1}%d${3}", handlerStack)), nil
}

// initWait finds where Go's runtime waits, in each call from C, until the engine is initialized.
var initWait = regexp.MustCompile(`\n(\t+)<-main_init_done\n`)

// withoutInitLock returns Go's runtime/cgocall.go with calls that do not lock the channel of
// initWait once it is closed. That lock takes a quarter of the time of an empty call, and all
// threads of the program share it.
func withoutInitLock(cgocall []byte) ([]byte, error) {
	if n := len(initWait.FindAll(cgocall, -1)); n != 1 {
		return nil, fmt.Errorf("this version of Go waits for its initialization in another way (%d places, want 1): "+
			"build with the version in go.mod, with GOTOOLCHAIN", n)
	}
	// A select with a default reads a closed channel without its lock.
	with := "\n${1}select {\n${1}case <-main_init_done:\n${1}default:\n${1}\t<-main_init_done\n${1}}\n"
	return initWait.ReplaceAll(cgocall, []byte(with)), nil
}

// goRoot returns the GOROOT of the Go that builds the module at root. go build refuses to replace
// files of the module cache, where a downloaded toolchain is: such a GOROOT gets another name in
// dir, a symbolic link.
func goRoot(root, dir string) (string, error) {
	cmd := exec.Command("go", "env", "GOROOT", "GOMODCACHE")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%v: %w", cmd, err)
	}
	goroot, cache, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if !strings.HasPrefix(goroot, cache+string(filepath.Separator)) {
		return goroot, nil
	}
	link := filepath.Join(dir, "goroot")
	return link, os.Symlink(goroot, link)
}

// overlay writes a file for go build -overlay into a directory, for the Go in goroot. With it, the
// stacks of the program's threads have handlerStack bytes from the start, and calls from C do not
// lock the channel of initWait.
func overlay(goroot, dir string) (string, error) {
	replace := map[string]string{}
	for name, change := range map[string]func([]byte) ([]byte, error){"proc.go": withHandlerStack, "cgocall.go": withoutInitLock} {
		original := filepath.Join(goroot, "src", "runtime", name)
		source, err := os.ReadFile(original)
		if err != nil {
			return "", err
		}
		if source, err = change(source); err != nil {
			return "", fmt.Errorf("%s: %w", original, err)
		}
		replace[original] = filepath.Join(dir, name)
		if err := os.WriteFile(replace[original], source, 0o666); err != nil {
			return "", err
		}
	}
	list := filepath.Join(dir, "overlay.json")
	b, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	return list, os.WriteFile(list, b, 0o666)
}
