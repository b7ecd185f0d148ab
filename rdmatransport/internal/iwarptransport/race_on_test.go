//go:build race

package iwarptransport_test

const raceEnabled = true
