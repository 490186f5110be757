"""What is declared of an application, compared with its cluster; each finding says what to do."""
