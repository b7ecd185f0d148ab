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
// stacks of the program's threads have handlerStack bytes from the start.
func overlay(goroot, dir string) (string, error) {
	proc := filepath.Join(goroot, "src", "runtime", "proc.go")
	source, err := os.ReadFile(proc)
	if err != nil {
		return "", err
	}
	if source, err = withHandlerStack(source); err != nil {
		return "", fmt.Errorf("%s: %w", proc, err)
	}
	replacement, list := filepath.Join(dir, "proc.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(replacement, source, 0o666); err != nil {
		return "", err
	}
	b, err := json.Marshal(map[string]map[string]string{"Replace": {proc: replacement}})
	if err != nil {
		return "", err
	}
	return list, os.WriteFile(list, b, 0o666)
}
