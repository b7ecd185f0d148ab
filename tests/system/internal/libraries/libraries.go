// Package libraries builds the drop-in libraries once for all tests that need them.
package libraries

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// Variable is the environment variable with a directory that Build has already filled.
const Variable = "SOFTRNIC_DROPIN"

// Build creates a directory that every user may read, with the libraries and the program softrnic.
func Build() (string, error) { return build(buildLibraries, buildProgram) }

// build creates a directory that every user may read, and calls each of the functions with it.
func build(parts ...func(dir string) error) (dir string, err error) {
	if dir, err = os.MkdirTemp("", "softrnic-dropin"); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	for _, part := range parts {
		if err := part(dir); err != nil {
			return "", err
		}
	}
	return dir, nil
}

func buildLibraries(dir string) error {
	return command(exec.Command("go", "run", "github.com/softrnic/softrnic/cmd/dropin/build", "-o", dir))
}

// buildProgram builds a static program, because the emulated machines have another C library.
func buildProgram(dir string) error {
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", dir+"/", "github.com/softrnic/softrnic/cmd/softrnic")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return command(cmd)
}

func command(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd, err, out)
	}
	return nil
}

// own has the directories that this process has created.
var own []string

// once returns a function that returns the directory that Variable names. Without one, its first
// call builds the parts.
func once(parts ...func(dir string) error) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		if dir := os.Getenv(Variable); dir != "" {
			return dir, nil
		}
		dir, err := build(parts...)
		if err == nil {
			own = append(own, dir)
		}
		return dir, err
	})
}

// Directory returns the directory that Variable names, or else one that the first call builds.
var Directory = once(buildLibraries, buildProgram)

var programDirectory = once(buildProgram)

// Program returns the path of the program softrnic: in the directory that Variable names, or else
// in one that the first call builds, without the libraries.
func Program() (string, error) {
	dir, err := programDirectory()
	return filepath.Join(dir, "softrnic"), err
}

// Remove removes the directories that this process has created. TestMain calls it.
func Remove() {
	for _, dir := range own {
		_ = os.RemoveAll(dir)
	}
}
