package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// event is a line of go test -json.
type event struct{ Action, Package, Test, Output string }

// eachEvent calls f with each event of go test -json.
func eachEvent(r io.Reader, f func(event)) error {
	for d := json.NewDecoder(r); ; {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("go test -json: %w", err)
		}
		f(e)
	}
}
