//go:build race

package service

const raced = true
