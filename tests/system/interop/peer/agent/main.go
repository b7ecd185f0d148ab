//go:build linux

// The agent runs in the peer and executes the commands of the tests over a virtio serial port. The
// port's name is its only constant.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/softrnic/softrnic/tests/system/interop/peer/control"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

func run() error {
	device, err := port("softrnic.control")
	if err != nil {
		return err
	}
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return control.Serve(f)
}

// port finds the device of a virtio serial port by its name, which udev would link.
func port(name string) (string, error) {
	files, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return "", err
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == name {
			return "/dev/" + filepath.Base(filepath.Dir(f)), nil
		}
	}
	return "", fmt.Errorf("no virtio serial port is named %q", name)
}
